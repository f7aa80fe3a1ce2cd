/** The waveform of a growing recording: lowest and highest sample by column. */

const BIN_SAMPLES = 120; // 5 ms at 24 kHz; doubled whenever MAX_BINS are full
const MAX_BINS = 4096;
const LEAST_SECONDS = 5; // shown at least, so that a short text does not fill the width at once
const COLUMN = 3; // CSS pixels, with the gap
const GAP = 1;
const LEAST_SCALE = 0.2; // the magnitude that fills the height at least; louder ones scale it

/** Lows and highs of bins of equal length; memory stays bounded however long the audio is. */
export class Peaks {
  constructor() {
    this.binSamples = BIN_SAMPLES;
    this.samples = 0;
    this.loudest = 0; // largest magnitude
    this.low = new Float32Array(MAX_BINS);
    this.high = new Float32Array(MAX_BINS);
  }

  add(/** @type {Int16Array} */ samples) {
    for (const sample of samples) {
      const value = sample / 32768;
      let bin = Math.floor(this.samples / this.binSamples);
      if (bin === MAX_BINS) {
        this._halve();
        bin = MAX_BINS / 2;
      }
      if (this.samples % this.binSamples === 0) {
        this.low[bin] = value;
        this.high[bin] = value;
      } else if (value < this.low[bin]) this.low[bin] = value;
      else if (value > this.high[bin]) this.high[bin] = value;
      this.loudest = Math.max(this.loudest, Math.abs(value));
      this.samples += 1;
    }
  }

  /** Lowest and highest of the samples `from` .. `to`; null where there are none. */
  range(/** @type {number} */ from, /** @type {number} */ to) {
    const last = Math.min(Math.ceil(to / this.binSamples), Math.ceil(this.samples / this.binSamples));
    const first = Math.floor(from / this.binSamples);
    if (first >= last) return null;
    let low = this.low[first];
    let high = this.high[first];
    for (let bin = first + 1; bin < last; bin++) {
      low = Math.min(low, this.low[bin]);
      high = Math.max(high, this.high[bin]);
    }
    return { low, high };
  }

  _halve() {
    for (let bin = 0; bin < MAX_BINS / 2; bin++) {
      this.low[bin] = Math.min(this.low[2 * bin], this.low[2 * bin + 1]);
      this.high[bin] = Math.max(this.high[2 * bin], this.high[2 * bin + 1]);
    }
    this.binSamples *= 2;
  }
}

export class Waveform {
  /** Samples that have been heard; drawn at the next `draw`. */
  position = 0;
  _peaks = new Peaks();
  _rate = 24000;
  /** @type {number[]} */
  _gaps = [];

  /** @param {HTMLCanvasElement} canvas coloured by the custom properties --played, --ahead, --line,
   *  --gap, --muted and --ink */
  constructor(canvas) {
    this._canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear(/** @type {number} */ sampleRate) {
    this._peaks = new Peaks();
    this._rate = sampleRate;
    this._gaps = [];
    this.position = 0;
  }

  add(/** @type {Int16Array} */ samples) {
    this._peaks.add(samples);
  }

  /** Mark an underrun at the current position. */
  markGap() {
    this._gaps.push(this.position);
  }

  draw() {
    const canvas = this._canvas;
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    const context = canvas.getContext("2d");
    if (context === null || width === 0 || height === 0) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const shown = Math.max(this._peaks.samples, LEAST_SECONDS * this._rate);
    const plot = height - 18; // the rest is for the time axis
    this._drawAxis(context, width, height, shown / this._rate, colour);
    this._drawColumns(context, width, plot, shown, colour);
    const x = (/** @type {number} */ at) => Math.min(width - 1, Math.round((at / shown) * width));
    context.fillStyle = colour("--gap");
    for (const gap of this._gaps) context.fillRect(x(gap) - 1, 0, 2, plot);
    if (this._peaks.samples > 0) {
      context.fillStyle = colour("--ink");
      context.fillRect(x(this.position), 0, 1.5, plot);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} plot
   *  @param {number} shown @param {(name: string) => string} colour */
  _drawColumns(context, width, plot, shown, colour) {
    const middle = plot / 2;
    context.fillStyle = colour("--line");
    context.fillRect(0, middle - 0.5, width, 1);
    const perPixel = shown / width;
    const scale = (middle - 2) / Math.max(LEAST_SCALE, this._peaks.loudest);
    const [played, ahead] = [colour("--played"), colour("--ahead")];
    for (let left = 0; left < width; left += COLUMN) {
      const from = left * perPixel;
      const peak = this._peaks.range(from, (left + COLUMN) * perPixel);
      if (peak === null) break;
      const top = Math.max(peak.high, 0) * scale;
      const bottom = Math.min(peak.low, 0) * scale;
      context.fillStyle = from < this.position ? played : ahead;
      context.fillRect(left, middle - top - 0.5, COLUMN - GAP, top - bottom + 1);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height
   *  @param {number} seconds @param {(name: string) => string} colour */
  _drawAxis(context, width, height, seconds, colour) {
    const least = (seconds * 64) / width; // seconds between labels that leave each other room
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600].find((s) => s >= least) ?? 1800;
    context.fillStyle = colour("--muted");
    context.font = `11px ${getComputedStyle(this._canvas).fontFamily}`;
    context.textBaseline = "bottom";
    for (let at = 0; at < seconds; at += step) {
      const x = Math.round((at / seconds) * width);
      context.fillRect(x, height - 18, 1, 4);
      const label = `${Math.floor(at / 60)}:${String(at % 60).padStart(2, "0")}`;
      if (x + 30 < width) context.fillText(label, x + 3, height);
    }
  }
}
