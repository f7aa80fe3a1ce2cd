/**
 * Band-limited interpolation: a Kaiser-windowed sinc, tabulated.
 *
 * 64 taps a side of the lower rate's period give about 70 dB of stop band; what lies above 0.46 of
 * the lower rate is taken away, so that neither images nor aliases are heard.
 */

const ZERO_CROSSINGS = 32; // on each side of the centre
const PHASES = 256; // tabulated between two samples; values between are interpolated linearly
const BETA = 7;
const CUTOFF = 0.46; // of the lower rate; the transition ends near its half

/** Modified Bessel function of the first kind, order 0, by its series. */
function bessel0(/** @type {number} */ x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; term > sum * 1e-12; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/** A table for one pair of rates; holds no stream state. */
export class SincTable {
  /**
   * @param {number} inputRate Hz
   * @param {number} outputRate Hz
   */
  constructor(inputRate, outputRate) {
    const scale = Math.min(1, outputRate / inputRate); // below 1: the output is the lower rate
    /** Input samples needed on each side of a position. */
    this.half = Math.ceil(ZERO_CROSSINGS / scale);
    /** Input samples from one output sample to the next. */
    this.step = inputRate / outputRate;
    this.identity = inputRate === outputRate;
    this.taps = 2 * this.half;
    this._rows = this.identity ? new Float32Array(0) : this._build(scale);
  }

  /** Row p holds the weights of the samples around a position p / PHASES after a sample. */
  _build(/** @type {number} */ scale) {
    const rows = new Float32Array((PHASES + 1) * this.taps);
    const norm = bessel0(BETA);
    for (let phase = 0; phase <= PHASES; phase++) {
      const row = rows.subarray(phase * this.taps, (phase + 1) * this.taps);
      let sum = 0;
      for (let tap = 0; tap < this.taps; tap++) {
        const t = tap - this.half + 1 - phase / PHASES; // distance in input samples
        const w = t / this.half;
        const window = Math.abs(w) >= 1 ? 0 : bessel0(BETA * Math.sqrt(1 - w * w)) / norm;
        const x = 2 * Math.PI * CUTOFF * scale * t;
        row[tap] = window * (x === 0 ? 1 : Math.sin(x) / x);
        sum += row[tap];
      }
      for (let tap = 0; tap < this.taps; tap++) row[tap] /= sum; // a constant stays constant
    }
    return rows;
  }

  /**
   * The value at `position` of samples kept in a ring.
   *
   * @param {Float32Array} ring its length is a power of two
   * @param {number} position in input samples; the ring holds `half` samples on each side of it
   */
  at(ring, position) {
    const mask = ring.length - 1;
    const whole = Math.floor(position);
    if (this.identity) return ring[whole & mask];
    const exact = (position - whole) * PHASES;
    const phase = Math.floor(exact);
    const rest = exact - phase;
    const row = phase * this.taps;
    const first = whole - this.half + 1;
    let here = 0;
    let next = 0;
    for (let tap = 0; tap < this.taps; tap++) {
      const sample = ring[(first + tap) & mask];
      here += sample * this._rows[row + tap];
      next += sample * this._rows[row + this.taps + tap];
    }
    return here + rest * (next - here);
  }
}
