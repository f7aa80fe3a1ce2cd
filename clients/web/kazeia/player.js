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
/** @typedef {(message: PlayoutMessage, transfer?: Transferable[]) => void} Post */

const FEED_AHEAD_S = 4;
const FEED_SAMPLES = 24000; // at most, in one message
const SLEEP_AFTER_MS = 30000;
const SCRIPT_FRAMES = 1024;
const STARTUP_MS = 500; // so long a permitted sound system may take to run
const VOLUME_S = 0.02; // a step would click

/**
 * @typedef {object} PlayerOptions
 * @property {(report: PlayoutReport) => void} [onreport] about every 20 ms, and at once when the
 *   state changes; never about an utterance before the current one
 * @property {() => void} [onblocked] the browser plays nothing before the visitor touches the page
 * @property {string | URL} [workletUrl] of worklet.js; default: beside this module
 * @property {number} [volume] 0..1
 */

export class Player {
  /** @param {PlayerOptions} [options] */
  constructor(options = {}) {
    this._onreport = options.onreport ?? (() => {});
    this._onblocked = options.onblocked ?? (() => {});
    const url = options.workletUrl;
    this._workletUrl =
      url === undefined ? new URL("worklet.js", import.meta.url) : new URL(url, document.baseURI);
    this._volume = 1;
    /** @type {GainNode | null} */
    this._gain = null;
    if (options.volume !== undefined) this.volume = options.volume;
    /** @type {AudioContext | null} */
    this._context = null;
    /** @type {Post | null} */
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

  /** 0 (silent) .. 1 (as it is). */
  get volume() {
    return this._volume;
  }

  set volume(value) {
    if (!(value >= 0 && value <= 1)) throw new RangeError(`volume ${value}: expected 0 to 1`);
    this._volume = value;
    if (this._gain === null) return;
    const { gain, context } = this._gain;
    gain.cancelScheduledValues(context.currentTime);
    gain.setValueAtTime(gain.value, context.currentTime);
    gain.linearRampToValueAtTime(value, context.currentTime + VOLUME_S);
  }

  /** Start the sound system; call it inside a user's gesture, or the browser keeps it silent. */
  async open() {
    clearTimeout(this._sleep);
    this._opening ??= this._start().catch((error) => {
      void this._context?.close();
      this._context = null;
      this._opening = null; // another try may succeed
      throw error;
    });
    // Called here, before anything is awaited, so that it counts as part of the gesture.
    const context = this._context;
    const resumed = context?.resume();
    await this._opening;
    const late = new Promise((resolve) => setTimeout(resolve, STARTUP_MS));
    await Promise.race([resumed, late]);
    // The state is asked anew: it changes while this waits.
    if (context?.state === "suspended" && navigator.userActivation?.hasBeenActive === false) {
      this._onblocked();
    }
    await resumed;
    if (!this._active) this._sleepLater();
  }

  /** Give the sound system back; `open` starts another. */
  async close() {
    this.stop();
    clearTimeout(this._sleep);
    const context = this._context;
    this._context = null;
    this._gain = null;
    this._post = null;
    this._opening = null;
    await context?.close();
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
    const onreport = (/** @type {PlayoutReport} */ report) => {
      if (context === this._context) this._reported(report);
    };
    // Worklets need a secure context.  The older interface still works without one.
    const { node, post } =
      context.audioWorklet === undefined
        ? scriptNode(context, onreport)
        : await workletNode(context, this._workletUrl, onreport);
    if (context !== this._context) return; // closed meanwhile
    this._gain = context.createGain();
    this._gain.gain.value = this._volume;
    node.connect(this._gain).connect(context.destination);
    this._post = post;
    if (this._active) {
      post({ type: "begin", epoch: this._epoch, rate: this._rate, live: this._live });
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

/**
 * A node that plays what is posted to it, on the audio thread.
 *
 * @param {AudioContext} context
 * @param {URL} url of worklet.js
 * @param {(report: PlayoutReport) => void} onreport
 */
async function workletNode(context, url, onreport) {
  try {
    await context.audioWorklet.addModule(url.href);
  } catch (error) {
    throw new Error(`the audio worklet ${url.href} cannot be loaded: ${error}`);
  }
  const node = new AudioWorkletNode(context, "kazeia-playout", {
    numberOfInputs: 0,
    outputChannelCount: [1],
  });
  node.port.onmessage = (event) => onreport(event.data);
  /** @type {Post} */
  const post = (message, transfer = []) => node.port.postMessage(message, transfer);
  return { node, post };
}

/**
 * The same on the main thread.
 *
 * @param {AudioContext} context
 * @param {(report: PlayoutReport) => void} onreport
 */
function scriptNode(context, onreport) {
  const buffer = new PlayoutBuffer(context.sampleRate, onreport);
  const node = context.createScriptProcessor(SCRIPT_FRAMES, 0, 1);
  node.onaudioprocess = (event) => buffer.render(event.outputBuffer.getChannelData(0));
  /** @type {Post} */
  const post = (message) => buffer.handle(message);
  return { node, post };
}
