/**
 * Plays speech while it is being made.
 *
 *     const player = new Player({ onreport: (report) => ... });
 *     await player.open();          // inside a click or a key press
 *     player.begin(24000);
 *     player.write(samples);        // Int16Array, mono, as often as some arrive
 *     player.end();                 // nothing more will come
 *     player.stop();                // silence, at once
 *
 * The audio thread's buffer holds about ten seconds.  What arrives earlier waits here and is handed
 * over as the buffer empties, however fast the speech is made.
 */

import { PlayoutBuffer } from "./playout.js";

/** @typedef {import("./playout.js").PlayoutReport} PlayoutReport */
/** @typedef {import("./playout.js").PlayoutMessage} PlayoutMessage */

const FEED_AHEAD_S = 4;
const FEED_SAMPLES = 24000; // at most, in one message
const SLEEP_AFTER_MS = 30000;
const SCRIPT_FRAMES = 1024;

/**
 * @typedef {object} PlayerOptions
 * @property {(report: PlayoutReport) => void} [onreport] about every 20 ms, and at once when the
 *   state changes; never about an utterance before the current one
 */

export class Player {
  /** @param {PlayerOptions} [options] */
  constructor(options = {}) {
    this._onreport = options.onreport ?? (() => {});
    /** @type {AudioContext | null} */
    this._context = null;
    /** @type {((message: PlayoutMessage, transfer?: Transferable[]) => void) | null} */
    this._post = null;
    /** @type {Promise<void> | null} */
    this._opening = null;
    this._epoch = 0;
    this._rate = 0;
    this._live = false;
    this._active = false;
    /** @type {Int16Array[]} */
    this._queue = [];
    this._head = 0; // the queue's first chunk not wholly handed over
    this._queueAt = 0; // samples of it that are
    this._fed = 0;
    this._position = 0;
    this._ended = false;
    this._endPosted = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._sleep = undefined;
  }

  /** Seconds between a sample's leaving the buffer and its being heard. */
  get outputLatency() {
    return this._context?.outputLatency || this._context?.baseLatency || 0;
  }

  /** Start the sound system; call it inside a user's gesture, or the browser keeps it silent. */
  async open() {
    clearTimeout(this._sleep);
    this._opening ??= this._start().catch((error) => {
      this._opening = null; // another try may succeed
      throw error;
    });
    // Called here, before anything is awaited, so that it counts as part of the gesture.
    const resumed = this._context?.resume();
    await this._opening;
    await resumed;
    if (!this._active) this._sleepLater();
  }

  /**
   * A new utterance; what was playing stops.
   *
   * @param {number} sampleRate Hz
   * @param {boolean} [live] its text is still being written: pauses are no underruns
   */
  begin(sampleRate, live = false) {
    this._forget();
    this._rate = sampleRate;
    this._live = live;
    this._active = true;
    this._epoch += 1;
    clearTimeout(this._sleep);
    this._post?.({ type: "begin", epoch: this._epoch, rate: sampleRate, live });
  }

  /** @param {Int16Array} samples mono; not kept when nothing has begun */
  write(samples) {
    if (!this._active || this._ended) return;
    this._queue.push(samples);
    this._feed();
  }

  /** The text of the utterance is complete: from now on running dry is an underrun. */
  textComplete() {
    this._live = false;
    this._post?.({ type: "live", live: false });
  }

  /** The utterance is complete; what is left of it is played. */
  end() {
    if (!this._active) return;
    this._ended = true;
    this._feed();
  }

  /** Silence at once; later writes are ignored until the next `begin`. */
  stop() {
    this._forget();
    this._epoch += 1; // reports on their way are about the past
    this._post?.({ type: "clear" });
    this._sleepLater();
  }

  _forget() {
    this._active = false;
    this._queue = [];
    this._head = 0;
    this._queueAt = 0;
    this._fed = 0;
    this._position = 0;
    this._ended = false;
    this._endPosted = false;
  }

  async _start() {
    const context = new AudioContext({ latencyHint: "interactive" });
    this._context = context;
    const onreport = (/** @type {PlayoutReport} */ report) => this._reported(report);
    if (context.audioWorklet !== undefined) {
      await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url).href);
      const node = new AudioWorkletNode(context, "kazeia-playout", {
        numberOfInputs: 0,
        outputChannelCount: [1],
      });
      node.port.onmessage = (event) => onreport(event.data);
      node.connect(context.destination);
      this._post = (message, transfer = []) => node.port.postMessage(message, transfer);
    } else {
      // Worklets need a secure context.  The older interface still works without one.
      const buffer = new PlayoutBuffer(context.sampleRate, onreport);
      const node = context.createScriptProcessor(SCRIPT_FRAMES, 0, 1);
      node.onaudioprocess = (event) => buffer.render(event.outputBuffer.getChannelData(0));
      node.connect(context.destination);
      this._post = (message) => buffer.handle(message);
    }
    if (this._active) {
      this._post({ type: "begin", epoch: this._epoch, rate: this._rate, live: this._live });
      this._feed();
    }
  }

  /** Hand over as much as the audio thread's buffer should hold. */
  _feed() {
    if (this._post === null) return;
    const ahead = FEED_AHEAD_S * this._rate;
    while (this._head < this._queue.length && this._fed - this._position < ahead) {
      const head = this._queue[this._head];
      const part = head.slice(this._queueAt, this._queueAt + FEED_SAMPLES);
      this._queueAt += part.length;
      if (this._queueAt >= head.length) {
        this._head += 1;
        this._queueAt = 0;
        if (this._head * 2 > this._queue.length) {
          this._queue.splice(0, this._head);
          this._head = 0;
        }
      }
      this._fed += part.length;
      this._post({ type: "write", samples: part }, [part.buffer]);
    }
    if (this._ended && this._head === this._queue.length && !this._endPosted) {
      this._endPosted = true;
      this._post({ type: "end" });
    }
  }

  _reported(/** @type {PlayoutReport} */ report) {
    if (report.epoch !== this._epoch) return;
    this._position = report.position;
    this._feed();
    if (report.state === "idle" && this._active) {
      this._active = false;
      this._sleepLater();
    }
    this._onreport(report);
  }

  /** An idle sound system costs power. */
  _sleepLater() {
    clearTimeout(this._sleep);
    this._sleep = setTimeout(() => {
      if (!this._active) void this._context?.suspend();
    }, SLEEP_AFTER_MS);
  }
}
