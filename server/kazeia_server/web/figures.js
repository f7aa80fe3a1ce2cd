/** The figures under the waveform, the level meter and the latency strip. */

/** @typedef {import("./kazeia/kazeia.js").Stats} Stats */
/** @typedef {import("./kazeia/kazeia.js").PlayoutReport} PlayoutReport */
/** @typedef {import("./kazeia/kazeia.js").Recording} Recording */

const STRIP_LENGTH = 40;
const SETTLED_S = 1.5; // a rate measured over less says little
const METER_FLOOR_DB = -54;

function write(/** @type {string} */ id, /** @type {string} */ text) {
  const element = /** @type {HTMLElement} */ (document.getElementById(id));
  if (element.textContent !== text) element.textContent = text;
}

function duration(/** @type {number} */ ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

function clock(/** @type {number} */ seconds) {
  const tenths = Math.floor(seconds * 10);
  const rest = ((tenths % 600) / 10).toFixed(1).padStart(4, "0");
  return `${Math.floor(tenths / 600)}:${rest}`;
}

export class Figures {
  /** @type {number[]} first-sound times of this session, ms */
  latencies = [];
  underruns = 0;
  _askedAt = 0; // ms, like all times here
  _firstAt = 0; // arrival of the first audio
  _lastAt = 0; // and of the last so far
  _firstSeconds = 0; // of audio in the first arrival
  _made = 0; // seconds of audio so far
  _level = 0; // RMS of what is heard
  /** @type {number | null} ms until the first sound */
  _firstSound = null;
  /** @type {Stats | null} */
  _stats = null;
  /** @type {PlayoutReport | null} */
  _report = null;

  /** @param {number} now when the user asked, ms */
  begin(now) {
    this._askedAt = now;
    this._firstAt = 0;
    this._lastAt = 0;
    this._firstSeconds = 0;
    this._made = 0;
    this._level = 0;
    this._firstSound = null;
    this._stats = null;
    this._report = null;
    this.underruns = 0;
  }

  /** @param {number} now ms @param {number} made seconds of audio so far */
  arrived(now, made) {
    if (this._firstAt === 0) {
      this._firstAt = now;
      this._firstSeconds = made;
    }
    this._lastAt = now;
    this._made = made;
  }

  complete(/** @type {Stats | null} */ stats) {
    this._stats = stats;
  }

  /** @param {PlayoutReport} report @param {number} made seconds @param {number} now ms
   *  @param {number} latency seconds until a sample is heard */
  reported(report, made, now, latency) {
    this._report = report;
    this.underruns = report.underruns;
    this._level = report.rms;
    if (this._firstSound === null && report.state === "playing") {
      this._firstSound = now - this._askedAt + latency * 1000;
      this._addLatency(this._firstSound);
    }
  }

  /** Seconds of work per second of audio: the server's own figure once there is one. */
  get rtf() {
    if (this._stats?.rtf != null) return this._stats.rtf;
    const seconds = this._made - this._firstSeconds;
    return seconds > 0 ? (this._lastAt - this._firstAt) / 1000 / seconds : null;
  }

  /** @param {number} position samples played @param {Recording | null} recording
   *  @param {boolean} over nothing plays any more */
  draw(position, recording, over) {
    const made = recording?.seconds ?? 0;
    const played = recording === null ? 0 : position / recording.sampleRate;
    write("played", clock(played));
    write("made", clock(made));
    write("first-sound", this._firstSound === null ? "–" : duration(this._firstSound));
    const rtf = this.rtf;
    write("rtf", rtf === null ? "–" : rtf.toFixed(rtf < 1 ? 3 : 2));
    write("buffered", recording === null ? "–" : `${Math.max(0, made - played).toFixed(1)} s`);
    write("underruns", this._report === null ? "–" : String(this.underruns));
    this._drawNotes();
    this._drawSlow(rtf, over);
    const db = 20 * Math.log10(Math.max(this._level, 1e-6));
    const level = over ? 0 : Math.min(1, Math.max(0, 1 - db / METER_FLOOR_DB));
    document.getElementById("level")?.style.setProperty("--level", level.toFixed(3));
    const seconds = `${made.toFixed(1)} seconds made, ${played.toFixed(1)} played`;
    document.getElementById("waveform")?.setAttribute("aria-label", `Waveform: ${seconds}`);
  }

  _drawNotes() {
    const stats = this._stats;
    if (stats?.ttfb_s != null) {
      write("first-sound-note", `${duration(stats.ttfb_s * 1000)} of it in the voice`);
    } else write("first-sound-note", "from the click to the ear");
    if (stats?.rtf != null) write("rtf-note", `measured by the server, ${stats.n_chunks} chunks`);
    else write("rtf-note", this._made > 0 ? "so far, as it arrives" : "seconds of work a second of speech");
    const report = this._report;
    const target = report === null ? "" : `plays from ${Math.round(report.target * 1000)} ms on`;
    write("buffered-note", target || "speech that is ready");
    const gap = report?.gap ? `${report.gap.toFixed(1)} s of silence` : "no gaps";
    write("underruns-note", report === null ? "gaps for want of speech" : gap);
  }

  _drawSlow(/** @type {number | null} */ rtf, /** @type {boolean} */ over) {
    const box = /** @type {HTMLElement} */ (document.getElementById("slow"));
    const enough = this._made - this._firstSeconds >= SETTLED_S || this.underruns > 0;
    const slow = rtf !== null && rtf > 1.02 && enough && !(over && this.underruns === 0);
    if (slow) {
      write(
        "slow",
        `Speech is made more slowly here than it is spoken: ${(1 / rtf).toFixed(2)} s of it a second. ` +
          "It pauses now and then to let more be made.",
      );
    }
    box.hidden = !slow;
  }

  _addLatency(/** @type {number} */ ms) {
    this.latencies.push(ms);
    const recent = this.latencies.slice(-STRIP_LENGTH);
    const highest = Math.max(...recent);
    const strip = /** @type {HTMLElement} */ (document.getElementById("latency"));
    strip.replaceChildren(
      ...recent.map((value) => {
        const bar = document.createElement("li");
        bar.style.setProperty("--height", (value / highest).toFixed(3));
        bar.textContent = duration(value);
        bar.title = duration(value);
        return bar;
      }),
    );
    const sorted = [...this.latencies].sort((a, b) => a - b);
    const [fastest, slowest] = [sorted[0], sorted[sorted.length - 1]].map(duration);
    const median = duration(sorted[Math.floor(sorted.length / 2)]);
    write(
      "latency-summary",
      sorted.length === 1
        ? `${median}, one utterance so far`
        : `Median ${median} of ${sorted.length}; fastest ${fastest}, slowest ${slowest}`,
    );
  }
}
