/** The audio thread's end of the player: a PlayoutBuffer behind a message port. */

import { PlayoutBuffer } from "./playout.js";

class PlayoutProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    const buffer = new PlayoutBuffer(sampleRate, (report) => this.port.postMessage(report));
    this._buffer = buffer;
    this.port.onmessage = (event) => buffer.handle(event.data);
  }

  /** @param {Float32Array[][]} _inputs @param {Float32Array[][]} outputs */
  process(_inputs, outputs) {
    const [first, ...others] = outputs[0];
    this._buffer.render(first);
    for (const channel of others) channel.set(first);
    return true;
  }
}

registerProcessor("kazeia-playout", PlayoutProcessor);
