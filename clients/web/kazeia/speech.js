/**
 * Speech from a Kazeia server, heard while it is made.
 *
 *     const speech = new Speech("https://tts.example.org/");
 *     button.onclick = () => speech.speak("Hello.", { voice: "vivian" });
 *
 * One utterance at a time: a new one replaces what is being spoken.
 */

import { ANSWER_S, SpeechClient } from "./client.js";
import { SpeechError } from "./errors.js";
import { Player } from "./player.js";
import { readVoices } from "./voices.js";

/** @typedef {import("./client.js").AudioStart} AudioStart */
/** @typedef {import("./client.js").Stats} Stats */
/** @typedef {import("./errors.js").Failure} Failure */
/** @typedef {import("./playout.js").PlayoutReport} PlayoutReport */
/** @typedef {string | Iterable<string> | AsyncIterable<string>} SpeechText */
/** @typedef {"writing" | "making" | "playing" | "done" | "cancelled" | "failed"} UtteranceState */

/**
 * @typedef {object} SpeechOptions
 * @property {string | (() => string)} [key] the API key; a function is asked at every connection
 * @property {number} [answerTimeout] seconds; a server that is silent for twice as long is given up
 * @property {number} [volume] 0..1
 * @property {string | URL} [workletUrl] of worklet.js; default: beside this module
 */

const GESTURES = ["mousedown", "keydown", "touchend"]; // those that let a page make sound

/** A text and its speech.  Made by `Speech.begin` and `Speech.speak`. */
export class Utterance {
  /** @param {Speech} speech @param {boolean} live its text is written bit by bit */
  constructor(speech, live) {
    this._speech = speech;
    this._live = live;
    this._begun = performance.now();
    this._underruns = 0;
    this._heard = false;
    /** @type {Stats | null} */
    this._stats = null;
    /** @type {UtteranceState} */
    this._state = "writing";
    /** @type {(stats: Stats | null) => void} */
    this._resolve = () => {};
    /** @type {(error: SpeechError) => void} */
    this._reject = () => {};
    /** The figures once the last sample has been played; null after a cancellation. */
    this.finished = new Promise((/** @type {(stats: Stats | null) => void} */ resolve, reject) => {
      this._resolve = resolve;
      this._reject = reject;
    });
    this.finished.catch(() => {}); // also told by an event: nobody has to look here
  }

  /** How far it has come. */
  get state() {
    return this._state;
  }

  /** Whether it is neither over nor completely made. */
  get making() {
    return this._state === "writing" || this._state === "making";
  }

  /** Whether it is over. */
  get over() {
    return this._state === "done" || this._state === "cancelled" || this._state === "failed";
  }

  /**
   * Append to the text, as it is: spaces belong to the pieces.
   *
   * @param {string} text
   * @returns {boolean} whether it was taken: not after `end`, nor once the utterance is over
   */
  write(text) {
    if (this._state !== "writing") return false;
    this._speech._client.text(text);
    return true;
  }

  /** Have what was written spoken, without waiting for the rest of a sentence. */
  flush() {
    if (this._state === "writing") this._speech._client.flush();
  }

  /** The text is complete. */
  end() {
    if (this._state !== "writing") return;
    this._state = "making";
    this._speech._player.textComplete();
    this._speech._client.done();
  }

  /** Silence at once, if this is what is being spoken. */
  cancel() {
    if (!this.over) this._speech.cancel();
  }
}

/** A connection to a server and the sound it makes. */
export class Speech extends EventTarget {
  /** @param {string | URL} server its address, with its path prefix @param {SpeechOptions} [options] */
  constructor(server, options = {}) {
    super();
    this._server = baseAddress(server);
    const { key = "", answerTimeout = ANSWER_S } = options;
    this._answerTimeout = answerTimeout;
    this._key = typeof key === "function" ? key : () => key;
    /** @type {Utterance | null} */
    this._current = null;
    this._player = new Player({
      volume: options.volume,
      workletUrl: options.workletUrl,
      onreport: (report) => this._reported(report),
      onblocked: () => this._blocked(),
    });
    this._client = new SpeechClient(
      this._server,
      {
        onstart: (start) => this._started(start),
        onaudio: (samples) => this._arrived(samples),
        onend: (stats) => this._ended(stats),
        onfailure: (failure) => this._failed(failure),
      },
      this._key,
      answerTimeout,
    );
    this._soundless = false; // the browser cannot play the current utterance
    this._audible = false; // audio of it has come
    /** @type {(() => void) | null} */
    this._warm = null;
  }

  /** What is being written, made or played; null: nothing. */
  get utterance() {
    return this._current;
  }

  /** Whether something is being written, made or played. */
  get speaking() {
    return this._current !== null;
  }

  /** 0 (silent) .. 1 (as it is). */
  get volume() {
    return this._player.volume;
  }

  set volume(value) {
    this._player.volume = value;
  }

  /** Seconds between a sample's being played and its being heard. */
  get outputLatency() {
    return this._player.outputLatency;
  }

  /** Connect ahead of the first utterance, which then begins sooner. */
  connect() {
    this._client.connect();
  }

  /** Start the sound system at the visitor's first touch of the page, before it is needed. */
  warmUp() {
    if (this._warm !== null) return;
    const open = () => {
      if (navigator.userActivation?.isActive === false) return;
      this._stopWarming();
      this._player.open().catch(() => {}); // told when it is needed
    };
    this._warm = open;
    for (const name of GESTURES) document.addEventListener(name, open);
  }

  /**
   * Voices and languages of the server, as `GET /v1/voices` tells them.
   *
   * @throws {SpeechError}
   */
  voices() {
    return readVoices(this._server, this._key, 1000 * this._answerTimeout);
  }

  /**
   * Speak a text: a whole one, or one that a program is still writing.
   *
   * @param {SpeechText} text
   * @param {Record<string, unknown>} [options] of the utterance: the fields of `session.config`
   */
  speak(text, options = {}) {
    const whole = typeof text === "string";
    const utterance = this._begin(options, !whole);
    if (whole) {
      utterance.write(text);
      utterance.end();
    } else {
      void this._writeAll(utterance, text);
    }
    return utterance;
  }

  /**
   * Begin an utterance whose text is written bit by bit.
   *
   * @param {Record<string, unknown>} [options] the fields of `session.config`
   */
  begin(options = {}) {
    return this._begin(options, true);
  }

  /** Silence at once: nothing more is made or heard of the current utterance. */
  cancel() {
    const utterance = this._current;
    if (utterance === null) return;
    this._client.cancel();
    this._player.stop();
    this._over(utterance, "cancelled");
    utterance._resolve(null);
    this._tell("cancelled", utterance);
  }

  /** Cancel, and give connection and sound system back; the next utterance makes them again. */
  async close() {
    this.cancel();
    this._stopWarming();
    this._client.disconnect();
    await this._player.close();
  }

  /** @param {Record<string, unknown>} options @param {boolean} live */
  _begin(options, live) {
    const { response_format: format = "pcm" } = options;
    if (format !== "pcm") {
      throw new TypeError(`response_format ${format}: expected "pcm", which is what can be played`);
    }
    this.cancel();
    const utterance = new Utterance(this, live);
    this._current = utterance;
    this._soundless = false;
    this._audible = false;
    this._client.begin(options);
    this._player.open().catch((error) => this._noSound(utterance, error));
    return utterance;
  }

  /** @param {Utterance} utterance @param {Iterable<string> | AsyncIterable<string>} pieces */
  async _writeAll(utterance, pieces) {
    try {
      for await (const piece of pieces) {
        if (!utterance.write(piece)) return; // which also ends an iterator that has a return()
      }
      utterance.end();
    } catch (error) {
      if (utterance.over) return;
      this._client.cancel();
      this._failed({ code: "text_failed", message: `The text broke off: ${error}` });
    }
  }

  // ---- from the server ------------------------------------------------------------------------

  _started(/** @type {AudioStart} */ start) {
    const utterance = this._current;
    if (utterance === null || this._audible) return; // a further part of the same utterance
    this._audible = true;
    this._player.begin(start.sample_rate, utterance._live && utterance._state === "writing");
    this._tell("start", {
      sampleRate: start.sample_rate,
      voice: start.voice,
      source: start.source,
    });
  }

  _arrived(/** @type {Int16Array} */ samples) {
    this._player.write(samples);
    this._tell("audio", samples);
  }

  _ended(/** @type {Stats | null} */ stats) {
    const utterance = this._current;
    if (utterance === null) return;
    utterance._stats = stats;
    utterance._state = "playing";
    this._player.end();
    this._tell("made", stats);
    if (!this._audible || this._soundless) this._played(utterance);
  }

  _failed(/** @type {Failure} */ failure) {
    const utterance = this._current;
    const error = new SpeechError(failure);
    this._player.stop();
    if (utterance !== null) {
      this._over(utterance, "failed");
      utterance._reject(error);
    }
    this._tell("error", error);
  }

  // ---- from the player ------------------------------------------------------------------------

  _reported(/** @type {PlayoutReport} */ report) {
    const utterance = this._current;
    if (utterance === null) return;
    this._tell("progress", report);
    if (!utterance._heard && report.state === "playing") {
      utterance._heard = true;
      const seconds = (performance.now() - utterance._begun) / 1000 + this.outputLatency;
      this._tell("firstaudio", { seconds });
    }
    if (report.underruns > utterance._underruns) {
      utterance._underruns = report.underruns;
      this._tell("underrun", { count: report.underruns, gap: report.gap });
    }
    if (report.state === "idle" && utterance._state === "playing") this._played(utterance);
  }

  /** @param {Utterance} utterance @param {Error} error */
  _noSound(utterance, error) {
    if (utterance !== this._current) return;
    this._soundless = true;
    this._tell("soundless", new SpeechError({ code: "no_sound", message: error.message }));
    if (utterance._state === "playing") this._played(utterance);
  }

  _blocked() {
    this.warmUp();
    if (this._current !== null) this._tell("blocked", this._current);
  }

  _played(/** @type {Utterance} */ utterance) {
    this._over(utterance, "done");
    utterance._resolve(utterance._stats);
    this._tell("done", utterance._stats);
  }

  /** @param {Utterance} utterance @param {UtteranceState} state */
  _over(utterance, state) {
    utterance._state = state;
    this._current = null;
  }

  _stopWarming() {
    const open = this._warm;
    this._warm = null;
    if (open === null) return;
    for (const name of GESTURES) document.removeEventListener(name, open);
  }

  /** @param {string} type @param {unknown} detail */
  _tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** @param {string | URL} server */
function baseAddress(server) {
  let base;
  try {
    base = new URL(server, globalThis.document?.baseURI);
  } catch {
    throw new TypeError(`server ${server}: expected an address such as "https://host:8080/"`);
  }
  if (base.protocol !== "http:" && base.protocol !== "https:") {
    throw new TypeError(`server ${server}: expected an address of http or https`);
  }
  base.search = "";
  base.hash = "";
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return base;
}
