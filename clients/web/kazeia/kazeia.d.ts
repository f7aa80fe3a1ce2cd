/** Speech from a Kazeia server on any web page; README.md tells how. */

/** Options of an utterance: the fields of `session.config`, see server/PROTOCOL.md. */
export interface UtteranceOptions {
  /** A name of `Speech.voices()`; default: the server's. */
  voice?: string;
  /** "auto" (the default), an English name ("french") or a code ("fr-CA"). */
  language?: string;
  /** How to speak, where the voice follows instructions. */
  instruct?: string;
  /** 0.25..4; the pitch is kept. */
  speed?: number;
  /** 0..2^53-1: same seed and text, same audio. */
  seed?: number;
  /** 0..10; 0: greedy. */
  temperature?: number;
  top_k?: number;
  top_p?: number;
  repetition_penalty?: number;
  cp_temperature?: number;
  cp_top_k?: number;
  cp_top_p?: number;
  text_mode?: "auto" | "whole" | "streaming";
  /** Of 80 ms. */
  max_frames?: number;
  chunk?: "auto" | number;
  clean?: boolean;
  split?: "auto" | "sentence" | "none";
  response_format?: "pcm";
  /** 8000..48000 Hz; default: the voice's own. */
  sample_rate?: number;
}

/** What the server says with the first audio of an utterance. */
export interface AudioStart {
  sample_rate: number;
  voice: string | null;
  source: string;
}

/** How an utterance went: the fields of `audio.done`. */
export interface Stats {
  /** "eos" by itself, "max_frames", "runaway", "silence" and "repetition" cut, "empty". */
  ended: string;
  /** Seconds from the first words to the first audio, at the server. */
  ttfb_s: number | null;
  /** Seconds of work per second of audio. */
  rtf: number | null;
  n_chunks: number;
  /** Seconds of audio. */
  audio_s: number;
  warnings: string[];
}

/** How playback goes. */
export interface PlayoutReport {
  /** Counts the utterances of a player. */
  epoch: number;
  state: "idle" | "buffering" | "playing";
  /** Samples played, at the stream's rate. */
  position: number;
  /** Seconds in the audio thread's buffer. */
  buffered: number;
  /** Seconds wanted there before playing. */
  target: number;
  /** Gaps heard inside the speech. */
  underruns: number;
  /** Seconds of silence in these gaps. */
  gap: number;
  /** Largest magnitude since the last report, 0..1. */
  peak: number;
  /** Over the time since the last report. */
  rms: number;
}

export interface Failure {
  message: string;
  code: string;
  retry_after_s?: number;
  status?: number;
}

export interface Voice {
  id: string;
  name: string;
  default?: boolean;
}

/** The answer of `GET /v1/voices`. */
export interface Voices {
  voices: Voice[];
  languages: string[];
  /** "built-in" or "qwen3-tts". */
  voice_source: string;
  model: string;
  follows_instructions: boolean;
}

export declare class SpeechError extends Error {
  constructor(failure: Failure);
  /** One of server/PROTOCOL.md or of README.md. */
  code: string;
  /** Seconds after which another try is sensible. */
  retryAfter: number | null;
  /** HTTP status, where an HTTP request failed. */
  status: number | null;
}

export type SpeechText = string | Iterable<string> | AsyncIterable<string>;
export type UtteranceState = "writing" | "making" | "playing" | "done" | "cancelled" | "failed";

/** A text and its speech.  Made by `Speech.begin` and `Speech.speak`. */
export declare class Utterance {
  private constructor();
  readonly state: UtteranceState;
  /** Whether it is neither over nor completely made. */
  readonly making: boolean;
  readonly over: boolean;
  /**
   * Resolves when the last sample has been played; to null after a cancellation.  Rejects with a
   * SpeechError.
   */
  readonly finished: Promise<Stats | null>;
  /** Append to the text.  False: it was not taken, since the utterance takes no more text. */
  write(text: string): boolean;
  /** Have what was written spoken, without waiting for the rest of a sentence. */
  flush(): void;
  /** The text is complete. */
  end(): void;
  /** Silence at once, if this is what is being spoken. */
  cancel(): void;
}

export interface SpeechOptions {
  /** The API key; a function is asked at every connection. */
  key?: string | (() => string);
  /** Seconds, 20 by default; a server that is silent for twice as long is given up. */
  answerTimeout?: number;
  /** 0..1 */
  volume?: number;
  /** Of worklet.js; default: beside this module. */
  workletUrl?: string | URL;
}

export interface SpeechEventMap {
  /** The server has sent the first audio. */
  start: CustomEvent<{ sampleRate: number; voice: string | null; source: string }>;
  /** 16-bit mono samples, as they arrive. */
  audio: CustomEvent<Int16Array>;
  /** The first sample is heard, so many seconds after `speak` or `begin`. */
  firstaudio: CustomEvent<{ seconds: number }>;
  /** Playback ran dry inside the speech; gap: seconds of silence so far. */
  underrun: CustomEvent<{ count: number; gap: number }>;
  /** About every 20 ms while something plays. */
  progress: CustomEvent<PlayoutReport>;
  /** All audio has arrived. */
  made: CustomEvent<Stats | null>;
  /** The last sample has been played. */
  done: CustomEvent<Stats | null>;
  cancelled: CustomEvent<Utterance>;
  /** The utterance failed, or the key was refused. */
  error: CustomEvent<SpeechError>;
  /** The browser plays nothing before the visitor touches the page; then it does by itself. */
  blocked: CustomEvent<Utterance>;
  /** The browser cannot play; audio goes on arriving. */
  soundless: CustomEvent<SpeechError>;
}

/** A connection to a server and the sound it makes; one utterance at a time. */
export declare class Speech extends EventTarget {
  /** @throws {TypeError} no address of http or https; {RangeError} a volume or a time out of range */
  constructor(server: string | URL, options?: SpeechOptions);
  /** What is being written, made or played; null: nothing. */
  readonly utterance: Utterance | null;
  readonly speaking: boolean;
  /** 0 (silent) .. 1 (as it is). */
  volume: number;
  /** Seconds between a sample's being played and its being heard. */
  readonly outputLatency: number;
  /** Connect ahead of the first utterance, which then begins sooner. */
  connect(): void;
  /** Start the sound system at the visitor's first touch of the page, before it is needed. */
  warmUp(): void;
  /** @throws {SpeechError} */
  voices(): Promise<Voices>;
  /** Speak a text: a whole one, or one that a program is still writing. */
  speak(text: SpeechText, options?: UtteranceOptions): Utterance;
  /** Begin an utterance whose text is written bit by bit. */
  begin(options?: UtteranceOptions): Utterance;
  /** Silence at once: nothing more is made or heard of the current utterance. */
  cancel(): void;
  /** Cancel, and give connection and sound system back; the next utterance makes them again. */
  close(): Promise<void>;
  addEventListener<K extends keyof SpeechEventMap>(
    type: K,
    listener: (event: SpeechEventMap[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  removeEventListener<K extends keyof SpeechEventMap>(
    type: K,
    listener: (event: SpeechEventMap[K]) => void,
    options?: boolean | EventListenerOptions,
  ): void;
  removeEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | EventListenerOptions,
  ): void;
}

export interface ClientHandlers {
  /** Before the first audio of an utterance. */
  onstart(start: AudioStart): void;
  onaudio(samples: Int16Array): void;
  /** The utterance is complete. */
  onend(stats: Stats | null): void;
  /** The utterance is over: no more will come of it. */
  onfailure(failure: Failure): void;
}

/** The protocol alone, without sound: one utterance at a time over one WebSocket. */
export declare class SpeechClient {
  /**
   * server: its base address, which ends with a slash; key: asked at every connection;
   * answerTimeout: seconds, see `SpeechOptions`.
   *
   * @throws {RangeError} answerTimeout is not above 0
   */
  constructor(server: URL, handlers: ClientHandlers, key?: () => string, answerTimeout?: number);
  /** Whether an utterance is being written or made. */
  readonly active: boolean;
  connect(): void;
  disconnect(): void;
  /** Begin an utterance; one that is active is cancelled. */
  begin(config: UtteranceOptions): void;
  text(text: string): void;
  flush(): void;
  done(): void;
  cancel(): void;
}

export interface PlayerOptions {
  /** About every 20 ms, and at once when the state changes. */
  onreport?: (report: PlayoutReport) => void;
  /** The browser plays nothing before the visitor touches the page. */
  onblocked?: () => void;
  workletUrl?: string | URL;
  volume?: number;
}

/** The sound alone: samples in, in bursts, played without gaps while they last. */
export declare class Player {
  constructor(options?: PlayerOptions);
  volume: number;
  readonly outputLatency: number;
  /** Start the sound system; call it inside a click or a key press. */
  open(): Promise<void>;
  /** A new utterance at so many Hz; live: its text is still being written, pauses are no underruns. */
  begin(sampleRate: number, live?: boolean): void;
  /** 16-bit mono samples. */
  write(samples: Int16Array): void;
  /** The text is complete: from now on running dry is an underrun. */
  textComplete(): void;
  /** The utterance is complete; what is left of it is played. */
  end(): void;
  /** Silence at once. */
  stop(): void;
  close(): Promise<void>;
}

/** The samples of an utterance, to be saved. */
export declare class Recording {
  constructor(sampleRate: number);
  readonly sampleRate: number;
  /** Samples. */
  readonly length: number;
  readonly seconds: number;
  add(samples: Int16Array): void;
  /** A complete WAV file. */
  wav(): Blob;
}
