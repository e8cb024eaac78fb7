/** Text on the map: glyphs are drawn once into a texture, so that a thousand letters a frame cost no more than a thousand dots. */

/** Two triangles. Not made anew for each letter: what a frame leaves behind has to be collected. */
const CORNERS = Uint8Array.of(0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1);
const CELL = 24, COLUMNS = 32, ROWS = 16, BASELINE = 18;

export class Glyphs {
  readonly texture: WebGLTexture;
  private context: CanvasRenderingContext2D;
  private places = new Map<string, { slot: number; width: number }>();
  private isStale = true;

  /** `ratio`: device pixels per CSS pixel. */
  constructor(private gl: WebGL2RenderingContext, readonly ratio: number) {
    const canvas = document.createElement("canvas");
    canvas.width = CELL * COLUMNS * ratio;
    canvas.height = CELL * ROWS * ratio;
    this.context = canvas.getContext("2d", { willReadFrequently: true })!;
    this.context.scale(ratio, ratio);
    this.context.font = "600 12px system-ui, sans-serif";
    this.context.fillStyle = "#fff";
    this.context.strokeStyle = "#f00";
    this.context.lineWidth = 3;
    this.context.lineJoin = "round";
    this.texture = gl.createTexture()!;
    for (let code = 32; code < 127; code++) this.place(String.fromCharCode(code));
  }

  /** Where a glyph is; it is drawn when it is first needed. Red is the outline, green the letter itself. */
  private place(letter: string): { slot: number; width: number } {
    const known = this.places.get(letter);
    if (known) return known;
    if (this.places.size >= COLUMNS * ROWS) return this.places.get("?")!;
    const made = { slot: this.places.size, width: this.context.measureText(letter).width };
    const x = (made.slot % COLUMNS) * CELL + 4, y = Math.floor(made.slot / COLUMNS) * CELL + BASELINE;
    this.context.globalCompositeOperation = "source-over";
    this.context.strokeText(letter, x, y);
    this.context.fillText(letter, x, y);
    this.places.set(letter, made);
    this.isStale = true;
    return made;
  }

  width(text: string): number {
    let width = 0;
    for (const letter of text) width += this.place(letter).width;
    return width;
  }

  /** Adds the quads of a text, six vertices a letter: x, y (pixels), u, v, r, g, b. */
  add(to: number[], text: string, left: number, top: number, colour: readonly number[], align: 0 | 0.5): void {
    let x = Math.round(left - this.width(text) * align) - 4;
    const y = Math.round(top) - BASELINE + 4;
    const [r, g, b] = colour;
    for (const letter of text) {
      const { slot, width } = this.place(letter);
      const u = (slot % COLUMNS) / COLUMNS, v = Math.floor(slot / COLUMNS) / ROWS;
      const du = 1 / COLUMNS, dv = 1 / ROWS;
      for (let k = 0; k < CORNERS.length; k += 2) {
        const i = CORNERS[k], j = CORNERS[k + 1];
        to.push(x + i * CELL, y + j * CELL, u + i * du, v + j * dv, r, g, b);
      }
      x += width;
    }
  }

  /** Sends new glyphs to the GPU. */
  bind(): void {
    const { gl } = this;
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    if (!this.isStale) return;
    this.isStale = false;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, this.context.canvas);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.LINEAR);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
  }
}
