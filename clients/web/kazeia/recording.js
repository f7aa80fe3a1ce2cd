/** Samples of one utterance, in the order they came: 16-bit, mono. */
export class Recording {
  constructor(/** @type {number} */ sampleRate) {
    this.sampleRate = sampleRate;
    /** @type {Int16Array[]} */
    this.chunks = [];
    this.length = 0; // samples
  }

  get seconds() {
    return this.length / this.sampleRate;
  }

  /** @param {Int16Array} samples kept, not copied */
  add(samples) {
    this.chunks.push(samples);
    this.length += samples.length;
  }

  /** A complete WAV file: a 44-byte header with true sizes, and the samples. */
  wav() {
    const header = new DataView(new ArrayBuffer(44));
    const bytes = this.length * 2;
    const tag = (/** @type {number} */ at, /** @type {string} */ name) => {
      for (let n = 0; n < 4; n++) header.setUint8(at + n, name.charCodeAt(n));
    };
    tag(0, "RIFF");
    header.setUint32(4, 36 + bytes, true);
    tag(8, "WAVE");
    tag(12, "fmt ");
    header.setUint32(16, 16, true);
    header.setUint16(20, 1, true); // PCM
    header.setUint16(22, 1, true); // channels
    header.setUint32(24, this.sampleRate, true);
    header.setUint32(28, this.sampleRate * 2, true);
    header.setUint16(32, 2, true);
    header.setUint16(34, 16, true);
    tag(36, "data");
    header.setUint32(40, bytes, true);
    const parts = /** @type {BlobPart[]} */ ([header.buffer, ...this.chunks]);
    return new Blob(parts, { type: "audio/wav" });
  }
}
