/** Attachment that tells the width of the element's content after each change, without a layout of its own as by `bind:clientWidth`. */
export const widthOf = (tell: (width: number) => void) => (element: Element) => {
  const watcher = new ResizeObserver(([entry]) => entry && tell(Math.floor(entry.contentRect.width)))
  watcher.observe(element)
  return () => watcher.disconnect()
}

/** Attachment that tells when the element is on the screen, or less than `margin` away from it. */
export const whenSeen = (tell: () => void, margin = '0px') => (element: Element) => {
  const watcher = new IntersectionObserver(([entry]) => entry?.isIntersecting && tell(), { rootMargin: margin })
  watcher.observe(element)
  return () => watcher.disconnect()
}
