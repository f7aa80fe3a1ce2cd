/** The page: connects the form, the speech of clients/web and the pictures. */

import { Figures } from "./figures.js";
import { Recording, Speech } from "./kazeia/kazeia.js";
import { TypingFeed, endsSentence } from "./typing.js";
import { Waveform } from "./waveform.js";

/** @typedef {import("./kazeia/kazeia.js").SpeechError} SpeechError */
/** @typedef {import("./kazeia/kazeia.js").Stats} Stats */
/** @typedef {import("./kazeia/kazeia.js").PlayoutReport} PlayoutReport */

const BASE = new URL("../", import.meta.url); // right under any path prefix
const KEY_ITEM = "kazeia.key";
const UNREACHABLE = "The server cannot be reached";
const RETRY_MS = 1000;
const SENTENCE_PAUSE_MS = 1000;
const HINT_MS = 4000; // so long a hint stays before the player's state is shown again
const REDRAW_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 250 : 0;

const ENDINGS = /** @type {Record<string, string>} */ ({
  eos: "Done",
  max_frames: "Cut at the length limit: the speech may be incomplete",
  runaway: "Cut, because the voice did not come to an end",
  silence: "Cut, because the voice had fallen silent",
  repetition: "Cut, because the voice repeated itself",
  empty: "Nothing in this text can be spoken",
});

/** @template {HTMLElement} T @returns {T} */
function element(/** @type {string} */ id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page lacks #${id}`);
  return /** @type {T} */ (found);
}

class Page {
  constructor() {
    /** @type {HTMLTextAreaElement} */
    this.text = element("text");
    /** @type {HTMLInputElement} */
    this.typing = element("typing");
    /** @type {HTMLSelectElement} */
    this.voice = element("voice");
    /** @type {HTMLSelectElement} */
    this.language = element("language");
    /** @type {HTMLInputElement} */
    this.speed = element("speed");
    /** @type {HTMLButtonElement} */
    this.speakButton = element("speak");
    /** @type {HTMLButtonElement} */
    this.stopButton = element("stop");
    /** @type {HTMLButtonElement} */
    this.downloadButton = element("download");

    this.waveform = new Waveform(element("waveform"));
    this.figures = new Figures();
    this.speech = new Speech(BASE, { key: () => sessionStorage.getItem(KEY_ITEM) ?? "" });
    /** @type {import("./kazeia/kazeia.js").Utterance | null} */
    this.utterance = null;
    this.feed = new TypingFeed((text) => this.utterance?.write(text));
    /** @type {Recording | null} */
    this.recording = null;
    /** @type {Stats | null} */
    this.stats = null;
    this.ready = false; // the server has a voice
    this.drawing = false; // at the next frame
    this.drawnAt = 0;
    this.hintedAt = -Infinity; // ms, when a hint was shown in place of the player's state
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.pause = undefined;
    this.listen();
    this.hear();
    this.speech.warmUp();
    void this.loadVoices();
  }

  listen() {
    element("speech-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.typing.checked) this.finishTyping();
      else this.speak();
    });
    this.stopButton.addEventListener("click", () => this.stop());
    this.downloadButton.addEventListener("click", () => this.download());
    this.typing.addEventListener("change", () => this.typingChanged());
    this.speed.addEventListener("input", () => this.speedChanged());
    element("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY_ITEM, /** @type {HTMLInputElement} */ (element("key")).value);
      void this.speech.close(); // the next connection brings the key
      void this.loadVoices();
    });
    for (const name of ["input", "compositionend"]) {
      this.text.addEventListener(name, (event) => {
        const composing = /** @type {InputEvent} */ (event).isComposing === true;
        if (this.typing.checked && !composing) this.typed();
      });
    }
    this.text.addEventListener("keydown", (event) => {
      // The line break itself comes with the input event that follows.
      if (event.key !== "Enter" || event.isComposing || event.ctrlKey || event.metaKey) return;
      if (this.typing.checked && !event.shiftKey) setTimeout(() => this.flushTyping());
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) {
        event.preventDefault();
        /** @type {HTMLFormElement} */ (element("speech-form")).requestSubmit();
      } else if (event.key === "Escape" && !this.stopButton.disabled && !event.isComposing) {
        this.stop();
      }
    });
  }

  hear() {
    const { speech } = this;
    speech.addEventListener("start", ({ detail }) => this.started(detail.sampleRate));
    speech.addEventListener("audio", ({ detail }) => this.arrived(detail));
    speech.addEventListener("made", ({ detail }) => this.made(detail));
    speech.addEventListener("progress", ({ detail }) => this.reported(detail));
    speech.addEventListener("done", () => this.finished());
    speech.addEventListener("error", ({ detail }) => this.failed(detail));
    speech.addEventListener("soundless", ({ detail }) => this.cannotPlay(detail));
  }

  // ---- what the server has ----------------------------------------------------------------

  async loadVoices() {
    let voices;
    try {
      voices = await this.speech.voices();
    } catch (error) {
      this.cannotLoad(/** @type {SpeechError} */ (error));
      return;
    }
    this.showVoices(voices);
  }

  cannotLoad(/** @type {SpeechError} */ { code, message, status }) {
    if (status === 401 || status === 403) {
      const tried = sessionStorage.getItem(KEY_ITEM) !== null;
      this.askForKey(tried ? "This key was not accepted." : null);
      return;
    }
    const loading = code === "loading";
    const shown = loading ? "The voice is being loaded…" : status === null ? UNREACHABLE : message;
    this.setSource(loading ? "waiting" : "bad", shown);
    setTimeout(() => void this.loadVoices(), RETRY_MS * (loading ? 1 : 3));
  }

  showVoices(/** @type {any} */ body) {
    const builtIn = body.voice_source === "built-in";
    this.setSource(
      builtIn ? "plain" : "good",
      builtIn
        ? "Built-in voice: no Qwen3-TTS model is configured"
        : `Qwen3-TTS model ${body.model}`,
    );
    const voices = body.voices.map((/** @type {any} */ voice) => [voice.id, voice.name]);
    const preset = body.voices.find((/** @type {any} */ voice) => voice.default)?.id;
    fillSelect(this.voice, voices.length > 0 ? voices : [["", "the model's own"]], preset);
    const languages = body.languages.map((/** @type {string} */ name) => [name, capital(name)]);
    fillSelect(this.language, languages, "auto");
    const follows = body.follows_instructions !== false;
    /** @type {HTMLInputElement} */ (element("instruct")).disabled = !follows;
    element("instruct-hint").hidden = follows;
    element("key-form").hidden = true;
    this.showError(null);
    this.ready = true;
    this.speech.connect();
    this.refresh();
    void this.showVersion();
  }

  async showVersion() {
    try {
      const health = await (await fetch(new URL("health", BASE))).json();
      element("version").textContent = `Kazeia ${health.version}`;
    } catch {
      element("version").textContent = "";
    }
  }

  askForKey(/** @type {string | null} */ complaint) {
    this.ready = false;
    this.setSource("waiting", "An API key is needed");
    element("key-form").hidden = false;
    this.showError(complaint);
    this.refresh();
    element("key").focus();
  }

  setSource(/** @type {"good" | "plain" | "waiting" | "bad"} */ kind, /** @type {string} */ text) {
    element("source").dataset.kind = kind;
    element("source-text").textContent = text;
  }

  // ---- what the user does -----------------------------------------------------------------

  speak() {
    if (!this.ready) return;
    if (this.text.value.trim() === "") {
      this.showError("There is nothing to say yet: write a text first.");
      this.text.focus();
      return;
    }
    this.begin();
    this.utterance = this.speech.speak(this.text.value, this.config());
    this.refresh();
  }

  /** A new utterance replaces what is spoken. */
  begin() {
    this.showError(null);
    this.speech.cancel();
    this.recording = null;
    this.stats = null;
    this.figures.begin(performance.now());
    this.waveform.clear(24000);
    this.say("Waiting for the first sound…");
  }

  config() {
    const seed = /** @type {HTMLInputElement} */ (element("seed")).value;
    const instruct = /** @type {HTMLInputElement} */ (element("instruct"));
    /** @type {Record<string, unknown>} */
    const config = { language: this.language.value };
    if (this.voice.value !== "") config.voice = this.voice.value;
    if (this.speedFactor() !== 1) config.speed = this.speedFactor();
    if (seed !== "") config.seed = Number(seed);
    if (!instruct.disabled && instruct.value.trim() !== "") config.instruct = instruct.value;
    return config;
  }

  stop() {
    this.speech.cancel();
    this.feed.reset(this.text.value);
    this.say("Stopped");
    this.refresh();
    this.draw(true);
  }

  download() {
    if (this.recording === null) return;
    const link = document.createElement("a");
    const url = URL.createObjectURL(this.recording.wav());
    const stamp = new Date().toISOString().slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "-");
    link.href = url;
    link.download = `kazeia-${stamp}.wav`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  }

  /** 0.25 .. 4: the slider is logarithmic, so that 1 lies in its middle. */
  speedFactor() {
    return Number((2 ** Number(this.speed.value)).toFixed(2));
  }

  speedChanged() {
    const text = `${this.speedFactor()}×`;
    element("speed-value").textContent = text;
    this.speed.setAttribute("aria-valuetext", text);
  }

  // ---- typing -----------------------------------------------------------------------------

  typingChanged() {
    this.stop();
    this.say("");
    document.body.classList.toggle("typing", this.typing.checked);
    element("speak-label").textContent = this.typing.checked ? "Finish" : "Speak";
    if (this.typing.checked) {
      this.feed.reset(this.text.value);
      this.text.focus();
      this.text.setSelectionRange(this.text.value.length, this.text.value.length);
    }
    this.refresh();
  }

  typed() {
    this.sendTyped(false);
    clearTimeout(this.pause);
    if (endsSentence(this.text.value)) {
      this.pause = setTimeout(() => this.sendTyped(true), SENTENCE_PAUSE_MS);
    }
  }

  sendTyped(/** @type {boolean} */ all) {
    if (!this.ready || !this.typing.checked) return;
    const { value, selectionStart } = this.text;
    if (!this.making && this.feed.pending(value)) {
      this.begin();
      this.utterance = this.speech.begin(this.config());
      this.refresh();
    }
    const kept = this.feed.update(value, selectionStart, all);
    if (!kept && this.making) {
      this.say("What has been sent cannot be changed; what you add at the end is spoken");
      this.hintedAt = performance.now();
    }
  }

  flushTyping() {
    this.sendTyped(true);
    this.utterance?.flush();
  }

  finishTyping() {
    clearTimeout(this.pause);
    this.sendTyped(true);
    this.utterance?.end();
    this.refresh();
  }

  // ---- what comes back --------------------------------------------------------------------

  /** Whether an utterance is being written or made. */
  get making() {
    return this.utterance?.making === true;
  }

  started(/** @type {number} */ sampleRate) {
    this.recording = new Recording(sampleRate);
    this.waveform.clear(sampleRate);
    this.refresh();
  }

  arrived(/** @type {Int16Array} */ samples) {
    if (this.recording === null) return;
    this.recording.add(samples);
    this.waveform.add(samples);
    this.figures.arrived(performance.now(), this.recording.seconds);
    this.draw();
  }

  made(/** @type {Stats | null} */ stats) {
    this.stats = stats;
    this.feed.reset(this.feed.pending(this.text.value) ? this.feed.sent : this.text.value);
    this.figures.complete(stats);
    this.refresh();
  }

  failed(/** @type {SpeechError} */ error) {
    this.feed.reset(this.text.value);
    this.say("");
    if (error.code === "invalid_api_key") this.askForKey(error.message);
    else this.showError(explain(error));
    this.refresh();
    this.draw(true);
  }

  cannotPlay(/** @type {Error} */ error) {
    this.showError(`The browser cannot play sound: ${error.message}. The speech can be saved.`);
  }

  reported(/** @type {PlayoutReport} */ report) {
    if (report.underruns > this.figures.underruns) this.waveform.markGap();
    this.waveform.position = report.position;
    const made = this.recording?.seconds ?? 0;
    this.figures.reported(report, made, performance.now(), this.speech.outputLatency);
    this.sayState(report);
    this.draw();
  }

  sayState(/** @type {PlayoutReport} */ report) {
    if (performance.now() - this.hintedAt < HINT_MS) return;
    if (report.state === "playing") this.say("Speaking");
    else if (report.position > 0) {
      this.say(this.utterance?.state === "writing" ? "Waiting for more text" : "Waiting for speech to be made…");
    }
  }

  /** The last sample has been played. */
  finished() {
    this.say(describe(this.stats, this.recording));
    this.refresh();
    this.draw(true);
  }

  // ---- what is shown ----------------------------------------------------------------------

  refresh() {
    const busy = this.speech.speaking;
    this.speakButton.disabled = !this.ready || (this.typing.checked && !this.making);
    this.stopButton.disabled = !busy;
    this.downloadButton.disabled = this.recording === null;
    document.body.classList.toggle("busy", busy);
  }

  say(/** @type {string} */ text) {
    const status = element("status");
    if (status.textContent !== text) status.textContent = text; // else it would be read out again
  }

  showError(/** @type {string | null} */ text) {
    const box = element("error");
    box.hidden = text === null;
    box.textContent = text ?? "";
  }

  /** Draw at the next frame; `last`: what is drawn then will stay. */
  draw(last = false) {
    if (this.drawing) return;
    const now = performance.now();
    if (!last && now - this.drawnAt < REDRAW_MS) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.drawnAt = performance.now();
      this.waveform.draw();
      this.figures.draw(this.waveform.position, this.recording, !this.speech.speaking);
    });
  }
}

/** @param {HTMLSelectElement} select @param {string[][]} options value and label @param {string} [chosen] */
function fillSelect(select, options, chosen) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
  const values = options.map(([value]) => value);
  select.value = values.includes(before) ? before : (chosen ?? values[0]);
  select.disabled = false;
}

function capital(/** @type {string} */ name) {
  return name.charAt(0).toUpperCase() + name.slice(1);
}

function explain(/** @type {SpeechError} */ error) {
  const most = error.code === "text_too_long" && /at most (\d+)/.exec(error.message);
  if (most) return `This text is too long: the server takes ${most[0]} characters at once.`;
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  return capital(error.message) + wait;
}

/** @param {Stats | null} stats @param {Recording | null} recording */
function describe(stats, recording) {
  if (stats === null) return recording === null ? "" : "Done";
  const parts = [ENDINGS[stats.ended] ?? stats.ended];
  parts.push(`${stats.audio_s.toFixed(1)} s of speech in ${stats.n_chunks} chunks`);
  return [parts.join(": "), ...stats.warnings].join(". ");
}

new Page();
