/**
 * The playout buffer: a ring of samples that arrive in bursts and leave at the pace of the sound
 * card.  Runs on the audio thread (worklet.js), or on the main one where there are no worklets.
 *
 * It starts to play once `target` seconds are there.  When it runs dry it waits for `target`
 * seconds again, and the target doubles: a connection or a voice that stutters gets fewer, longer
 * pauses instead of many short ones.
 */

import { SincTable } from "./resample.js";

const RING_SAMPLES = 1 << 18; // 10.9 s at 24 kHz; the feeder keeps to FEED_AHEAD_S of player.js
const MIN_TARGET_S = 0.06;
const MAX_TARGET_S = 2;
const FADE_S = 0.004; // into and out of a gap, so that it does not click
const REPORT_S = 0.02;

/**
 * @typedef {"idle" | "buffering" | "playing"} PlayoutState
 *
 * @typedef {object} PlayoutReport
 * @property {number} epoch the `begin` it belongs to
 * @property {PlayoutState} state
 * @property {number} position samples played, at the stream's rate
 * @property {number} buffered seconds in the ring
 * @property {number} target seconds wanted before playing
 * @property {number} underruns gaps heard inside the speech
 * @property {number} gap seconds of silence in these gaps
 * @property {number} peak largest magnitude since the last report
 * @property {number} rms over the time since the last report
 *
 * @typedef {{type: "begin", epoch: number, rate: number, live: boolean}
 *   | {type: "write", samples: Int16Array} | {type: "live", live: boolean}
 *   | {type: "end"} | {type: "clear"}} PlayoutMessage
 */

export class PlayoutBuffer {
  _written = 0; // samples since `begin`
  _position = 0; // of the next sample to be heard, fractional
  _ended = false; // nothing more will be written
  _starved = false; // it ran dry, and nothing has come since
  _underruns = 0;
  _gap = 0; // output samples of silence in underruns
  _gapNow = 0; // and in the one that may become one
  _last = 0; // the sample that was heard last, faded out from
  _fade = 1; // 0..1, into the sound after a gap
  _peak = 0;
  _energy = 0; // sum of squares since the last report
  _metered = 0; // output samples since the last report

  /**
   * @param {number} outputRate Hz
   * @param {(report: PlayoutReport) => void} onreport at every change of state and every 20 ms
   */
  constructor(outputRate, onreport) {
    this._outputRate = outputRate;
    this._onreport = onreport;
    this._ring = new Float32Array(RING_SAMPLES);
    this._target = MIN_TARGET_S;
    this._table = new SincTable(outputRate, outputRate);
    this._rate = outputRate;
    this._epoch = 0;
    /** @type {PlayoutState} */
    this._state = "idle";
    this._live = false; // text is still being written: running dry is nobody's fault
  }

  /** @param {PlayoutMessage} message */
  handle(message) {
    if (message.type === "write") this._write(message.samples);
    else if (message.type === "begin") this._begin(message.epoch, message.rate, message.live);
    else if (message.type === "live") this._live = message.live;
    else if (message.type === "end") this._end();
    else this._clear();
  }

  /** Fill `out` with what is to be heard next. */
  render(/** @type {Float32Array} */ out) {
    if (this._state === "buffering" && this._filled()) this._enter("playing");
    let n = 0;
    if (this._state === "playing") {
      n = this._play(out);
      if (n < out.length) this._ranDry();
    }
    this._fadeOut(out, n);
    if (this._state === "idle") return;
    this._measure(out);
    if (this._metered >= REPORT_S * this._outputRate) this._report();
  }

  _reset() {
    this._written = 0;
    this._position = 0;
    this._ended = false;
    this._starved = false;
    this._underruns = 0;
    this._gap = 0;
    this._gapNow = 0;
  }

  /** @param {number} epoch @param {number} rate @param {boolean} live */
  _begin(epoch, rate, live) {
    if (this._epoch > 0 && this._underruns === 0) {
      this._target = Math.max(MIN_TARGET_S, this._target * 0.7); // it went well: be quicker again
    }
    if (rate !== this._rate) {
      this._rate = rate;
      this._table = new SincTable(rate, this._outputRate);
    }
    this._ring.fill(0); // what lies before the first sample is silence
    this._reset();
    this._epoch = epoch;
    this._live = live;
    this._enter("buffering");
  }

  _write(/** @type {Int16Array} */ samples) {
    const mask = RING_SAMPLES - 1;
    for (let n = 0; n < samples.length; n++) {
      this._ring[(this._written + n) & mask] = samples[n] / 32768;
    }
    this._written += samples.length;
    if (this._starved && samples.length > 0) {
      this._starved = false;
      if (!this._live) {
        // Only now is it known that the speech was not over.
        this._underruns += 1;
        this._gap += this._gapNow;
        this._target = Math.min(MAX_TARGET_S, this._target * 2);
      }
    }
  }

  _end() {
    this._ended = true;
    // The last positions look at samples behind the end: silence, not what the ring held before.
    const mask = RING_SAMPLES - 1;
    for (let n = 0; n < this._table.half; n++) this._ring[(this._written + n) & mask] = 0;
  }

  _clear() {
    this._reset();
    this._enter("idle");
  }

  _filled() {
    if (this._ended) return true;
    return this._written - this._position >= this._target * this._rate + this._table.half;
  }

  /** Play into `out` as far as there is sound; returns how far. */
  _play(/** @type {Float32Array} */ out) {
    const table = this._table;
    const end = this._ended ? this._written : this._written - (table.identity ? 0 : table.half);
    const rise = 1 / (FADE_S * this._outputRate);
    let n = 0;
    for (; n < out.length && this._position < end; n++) {
      let value = table.at(this._ring, this._position);
      if (this._fade < 1) {
        value *= this._fade;
        this._fade = Math.min(1, this._fade + rise);
      }
      out[n] = value;
      this._position += table.step;
    }
    if (n > 0) this._last = out[n - 1];
    return n;
  }

  _ranDry() {
    if (this._ended) {
      this._position = this._written;
      this._enter("idle");
      return;
    }
    this._starved = true;
    this._gapNow = 0;
    this._fade = 0;
    this._enter("buffering");
  }

  /** What follows the last sound: silence, without a step. */
  _fadeOut(/** @type {Float32Array} */ out, /** @type {number} */ from) {
    if (this._state === "buffering") this._gapNow += out.length - from;
    const keep = Math.exp(-5 / (FADE_S * this._outputRate));
    for (let n = from; n < out.length; n++) {
      this._last = Math.abs(this._last) < 1e-5 ? 0 : this._last * keep;
      out[n] = this._last;
    }
  }

  _measure(/** @type {Float32Array} */ out) {
    for (const value of out) {
      const magnitude = Math.abs(value);
      if (magnitude > this._peak) this._peak = magnitude;
      this._energy += value * value;
    }
    this._metered += out.length;
  }

  _enter(/** @type {PlayoutState} */ state) {
    if (state === "playing" && this._position === 0) this._fade = 1; // the first sound as it is
    this._state = state;
    this._report();
  }

  _report() {
    this._onreport({
      epoch: this._epoch,
      state: this._state,
      position: Math.min(Math.floor(this._position), this._written),
      buffered: Math.max(0, this._written - this._position) / this._rate,
      target: this._target,
      underruns: this._underruns,
      gap: this._gap / this._outputRate,
      peak: this._peak,
      rms: Math.sqrt(this._energy / Math.max(1, this._metered)),
    });
    this._clearMeter();
  }

  _clearMeter() {
    this._peak = 0;
    this._energy = 0;
    this._metered = 0;
  }
}
