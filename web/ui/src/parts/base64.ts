// Base64, which the API uses for bytes in JSON.

/** Number of bytes passed to one call of `fromCharCode`: engines limit the number of arguments. */
const AT_ONCE = 0x8000

export function toBase64(bytes: Uint8Array): string {
  let letters = ''
  for (let at = 0; at < bytes.length; at += AT_ONCE) letters += String.fromCharCode(...bytes.subarray(at, at + AT_ONCE))
  return btoa(letters)
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const letters = atob(text)
  const bytes = new Uint8Array(letters.length)
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at)
  return bytes
}
