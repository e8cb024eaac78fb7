import { defineConfig } from "vite";

// The bundle is committed and goes into the wheel: `make web` twice must give the same bytes.
export default defineConfig({
  logLevel: "warn",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: "../src/stigmergy/serve/web",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: { output: { entryFileNames: "assets/page-[hash].js", assetFileNames: "assets/page-[hash][extname]" } },
  },
  // `npm run dev` shows the page of a fleet that is served already: STIGMERGY_URL=http://127.0.0.1:8080
  server: {
    proxy: { "/v1": { target: process.env.STIGMERGY_URL ?? "http://127.0.0.1:8080", changeOrigin: true, ws: true } },
  },
});
