// Base64, the form of bytes in the API's JSON.

/** Number of bytes that one call of `fromCharCode` takes as arguments. */
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
