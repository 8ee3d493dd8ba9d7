// Colours by number. Roles and runs take them in order of appearance; neighbours differ without red against green.

export const HUES = [215, 28, 155, 285, 350, 185, 60, 120];

// After eight of them come hues between the eight.
export function hue(place) {
  return (HUES[place % HUES.length] + 17 * Math.floor(place / HUES.length)) % 360;
}

// The colour of a hue in light mode as #rrggbb, for files: few programs but browsers read oklch. Matrices of
// https://bottosson.github.io/posts/oklab/.
export function hex(degrees, light = 0.54, chroma = 0.15) {
  const [a, b] = [chroma * Math.cos((degrees * Math.PI) / 180), chroma * Math.sin((degrees * Math.PI) / 180)];
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const gamma = (value) => (value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055);
  const byte = (value) => Math.round(255 * Math.min(1, Math.max(0, gamma(Math.max(0, value)))));
  return `#${linear.map((value) => byte(value).toString(16).padStart(2, "0")).join("")}`;
}

export function isDark() {
  const set = document.documentElement.dataset.theme;
  return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function line(place, opacity = 1) {
  const [light, chroma] = isDark() ? [0.76, 0.13] : [0.54, 0.15];
  return `oklch(${light} ${chroma} ${hue(place)} / ${opacity})`;
}

export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function roleHue(run, role) {
  const roles = Object.keys(run.assignment);
  const place = roles.indexOf(role);
  return hue(place < 0 ? roles.length : place);
}
