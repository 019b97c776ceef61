// A stage for Penstock: see README.md.
package main

import (
	"strings"
	"unicode/utf8"
)

// settings are the params of the document; manifest.json has their schema.
var settings = struct {
	Words int `json:"words"`
}{Words: 20}

func init() {
	stage := Each(firstWords)
	stage.Init = func(params []byte) error { return Params(params, &settings) }
	Register(stage)
}

// firstWords keeps the first words of a text file. Drops a file without words; refuses a file that is not text.
func firstWords(item *Item) (Outcome, error) {
	file, _ := item.Get("bytes").([]byte)
	if !utf8.Valid(file) {
		return Fail("the file is not UTF-8"), nil
	}
	words := strings.Fields(string(file))
	if len(words) == 0 {
		return Drop(), nil
	}
	kept := words[:min(settings.Words, len(words))]
	if len(kept) < len(words) {
		Count("cut", 1)
	}
	item.Remove("bytes")
	item.Set("text", strings.Join(kept, " "))
	item.Set("words", len(kept))
	return Keep(item), nil
}
