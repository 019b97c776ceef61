// The side of a stage that meets the runner: samples, results, logs, counters and assets. It is part of the stage's folder; a stage
// needs no other module.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"runtime"
	"strings"
	"unsafe"
)

// Stage is what a stage's file passes to [Register].
type Stage struct {
	// Init gets the params of the document as JSON, once for every instance, before anything else. An error ends the run.
	Init func(params []byte) error
	// Process gets one sample, or all samples of a batch if the manifest's mode is "batch", and returns an outcome for each.
	Process func(items []*Item) []Outcome
	// Finish returns the samples that a stage of mode "stateful" still holds at the end of an epoch.
	Finish func() []*Item
}

var stage Stage

// Register names the functions of the stage. Call it in init.
func Register(functions Stage) { stage = functions }

// Each makes a [Stage] of a function for one sample. An error fails the sample; so does a panic.
func Each(process func(item *Item) (Outcome, error)) Stage {
	one := func(item *Item) (outcome Outcome) {
		defer func() {
			if cause := recover(); cause != nil {
				outcome = Fail("panic: %v%s", cause, trace())
			}
		}()
		outcome, err := process(item)
		if err != nil {
			return Fail("%v", err)
		}
		return outcome
	}
	return Stage{Process: func(items []*Item) []Outcome {
		outcomes := make([]Outcome, len(items))
		for at, item := range items {
			outcomes[at] = one(item)
		}
		return outcomes
	}}
}

// trace returns the functions of the stage that led to a panic, without addresses, which differ from instance to instance.
func trace() string {
	var lines strings.Builder
	places := make([]uintptr, 64)
	frames := runtime.CallersFrames(places[:runtime.Callers(3, places)])
	for {
		frame, more := frames.Next()
		if file := path.Base(frame.File); file != "penstock.go" && !strings.HasPrefix(frame.Function, "runtime.") {
			fmt.Fprintf(&lines, "\n  in %s, %s:%d", frame.Function, file, frame.Line)
		}
		if !more {
			return lines.String()
		}
	}
}

// Item is a sample.
type Item struct {
	Key string
	// Seed is the same for any number of threads and ranks, and differs in every epoch.
	Seed   uint64
	Fields []Field
}

// Field is a named value: []byte, string, int64, float64 or [Tensor].
type Field struct {
	Name  string
	Value any
}

// Tensor has little-endian elements in Data, the last dimension first.
type Tensor struct {
	Dtype Dtype
	Shape []uint32
	Data  []byte
}

// Dtype is an element type.
type Dtype uint8

// The element types, as in NumPy and PyTorch.
const (
	Bool Dtype = iota
	Uint8
	Int8
	Int16
	Uint16
	Int32
	Int64
	Float16
	Bfloat16
	Float32
	Float64
)

// Get returns the value of a field, or nil.
func (item *Item) Get(name string) any {
	for _, field := range item.Fields {
		if field.Name == name {
			return field.Value
		}
	}
	return nil
}

// Text returns a field that must be text.
func (item *Item) Text(name string) (string, error) {
	switch value := item.Get(name).(type) {
	case string:
		return value, nil
	case nil:
		return "", fmt.Errorf("no field `%s`", name)
	default:
		return "", fmt.Errorf("field `%s` is a %T, not a text", name, value)
	}
}

// Set adds or replaces a field.
func (item *Item) Set(name string, value any) {
	for at := range item.Fields {
		if item.Fields[at].Name == name {
			item.Fields[at].Value = value
			return
		}
	}
	item.Fields = append(item.Fields, Field{name, value})
}

// Remove removes a field.
func (item *Item) Remove(name string) {
	for at := range item.Fields {
		if item.Fields[at].Name == name {
			item.Fields = append(item.Fields[:at:at], item.Fields[at+1:]...)
			return
		}
	}
}

// Child makes a sample without fields for the index-th part of this one.
func (item *Item) Child(index int) *Item {
	return &Item{Key: fmt.Sprintf("%s#%d", item.Key, index), Seed: rand.NewPCG(item.Seed, uint64(index)+1).Uint64()}
}

// Rand returns a generator that starts at the sample's seed. The functions of math/rand itself continue from sample to sample, so their
// numbers depend on the order of the samples.
func (item *Item) Rand() *rand.Rand { return rand.New(rand.NewPCG(item.Seed, 0)) }

// Outcome is what became of a sample.
type Outcome struct {
	kind    uint8
	items   []*Item
	message string
}

// Keep passes the sample on.
func Keep(item *Item) Outcome { return Outcome{kind: 0, items: []*Item{item}} }

// Drop leaves the sample out.
func Drop() Outcome { return Outcome{kind: 1} }

// Many replaces the sample by these; the manifest needs "fan_out".
func Many(items ...*Item) Outcome { return Outcome{kind: 2, items: items} }

// Held keeps the sample in a stage of mode "stateful".
func Held() Outcome { return Outcome{kind: 3} }

// Fail reports that the data of the sample cannot be processed.
func Fail(format string, arguments ...any) Outcome {
	return Outcome{kind: 4, message: fmt.Sprintf(format, arguments...)}
}

// Params decodes params for Init; unknown names are errors.
func Params(params []byte, into any) error { return json.Unmarshal(params, into) }

// Level of a line in the run's log. What is printed is logged as Info.
type Level uint32

// The levels of a run's log.
const (
	Debug Level = iota
	Info
	Warn
	Error
)

// Log writes a line to the run's log.
func Log(level Level, format string, arguments ...any) {
	line := fmt.Sprintf(format, arguments...)
	hostLog(uint32(level), unsafe.Pointer(unsafe.StringData(line)), uint32(len(line)))
}

// Count adds to a counter of the manifest.
func Count(name string, delta float64) {
	hostCount(unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)), delta)
}

// Asset returns a file that the document names for this stage.
func Asset(name string) ([]byte, error) {
	var answer [3]uint32
	hostAsset(unsafe.Pointer(unsafe.StringData(name)), uint32(len(name)), unsafe.Pointer(&answer))
	found := bytesAt(answer[1], answer[2])
	if answer[0]&0xff != 0 {
		return nil, fmt.Errorf("%s", found)
	}
	return found, nil
}

//go:wasmimport penstock:stage/host@0.1.0 log
func hostLog(level uint32, text unsafe.Pointer, length uint32)

//go:wasmimport penstock:stage/host@0.1.0 count
func hostCount(name unsafe.Pointer, length uint32, delta float64)

// Starts the system's random numbers and the time of day anew.
//
//go:wasmimport wasi_snapshot_preview1 penstock_seed
func seed(seed uint64)

//go:wasmimport penstock:stage/host@0.1.0 asset
func hostAsset(name unsafe.Pointer, length uint32, answer unsafe.Pointer)

// Memory that the runner reads or writes. The garbage collector moves nothing, and frees what is not listed here.
var held [][]uint64

func allocate(bytes uint32) unsafe.Pointer {
	block := make([]uint64, bytes/8+1)
	held = append(held, block)
	return unsafe.Pointer(&block[0])
}

//go:wasmexport cabi_realloc
func reallocate(old unsafe.Pointer, oldBytes, align, bytes uint32) unsafe.Pointer {
	place := allocate(bytes)
	copy(unsafe.Slice((*byte)(place), bytes), unsafe.Slice((*byte)(old), min(oldBytes, bytes)))
	return place
}

//go:wasmexport penstock:stage/transform@0.1.0#init
func exportInit(params unsafe.Pointer, length uint32) unsafe.Pointer {
	given := append([]byte{}, unsafe.Slice((*byte)(params), length)...)
	held = nil
	answer := allocate(12)
	if stage.Process == nil {
		return refuse(answer, "the stage calls no Register")
	}
	if stage.Init != nil {
		if err := stage.Init(given); err != nil {
			return refuse(answer, err.Error())
		}
	}
	return answer
}

func refuse(answer unsafe.Pointer, why string) unsafe.Pointer {
	place, length := lowered([]byte(why))
	words := unsafe.Slice((*uint32)(answer), 3)
	words[0], words[1], words[2] = 1, place, length
	return answer
}

//go:wasmexport penstock:stage/transform@0.1.0#process
func exportProcess(first unsafe.Pointer, count uint32) unsafe.Pointer {
	items := make([]*Item, count)
	for at := range items {
		items[at] = lift(unsafe.Add(first, itemBytes*at))
	}
	// The samples are copies by now.
	held = nil
	if count > 0 {
		seed(items[0].Seed)
	}
	outcomes := stage.Process(items)
	place := allocate(outcomeBytes * uint32(len(outcomes)))
	for at := range outcomes {
		outcomes[at].lower(memory(unsafe.Add(place, outcomeBytes*at), outcomeBytes))
	}
	return list(place, len(outcomes))
}

//go:wasmexport penstock:stage/transform@0.1.0#finish
func exportFinish() unsafe.Pointer {
	held = nil
	var items []*Item
	if stage.Finish != nil {
		items = stage.Finish()
	}
	return list(lowerItems(items), len(items))
}

// Sizes of the contract's records in memory, by the canonical ABI of components.
const (
	itemBytes    = 24
	fieldBytes   = 40
	outcomeBytes = 32
)

func memory(place unsafe.Pointer, bytes int) []byte { return unsafe.Slice((*byte)(place), bytes) }

func word(record []byte, at int) uint32 { return binary.LittleEndian.Uint32(record[at:]) }

func put(record []byte, at int, place, length uint32) {
	binary.LittleEndian.PutUint32(record[at:], place)
	binary.LittleEndian.PutUint32(record[at+4:], length)
}

// bytesAt returns a copy of bytes that the runner wrote.
func bytesAt(place, length uint32) []byte {
	if length == 0 {
		return []byte{}
	}
	return append([]byte{}, memory(pointer(place), int(length))...)
}

func pointer(place uint32) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(nil), uintptr(place)) }

func lowered(bytes []byte) (place, length uint32) {
	if len(bytes) == 0 {
		return 8, 0
	}
	to := allocate(uint32(len(bytes)))
	copy(memory(to, len(bytes)), bytes)
	return uint32(uintptr(to)), uint32(len(bytes))
}

func list(first unsafe.Pointer, count int) unsafe.Pointer {
	answer := allocate(8)
	put(memory(answer, 8), 0, uint32(uintptr(first)), uint32(count))
	return answer
}

func lift(from unsafe.Pointer) *Item {
	record := memory(from, itemBytes)
	item := &Item{Key: string(bytesAt(word(record, 0), word(record, 4))), Seed: binary.LittleEndian.Uint64(record[8:])}
	first := pointer(word(record, 16))
	for at := range int(word(record, 20)) {
		field := memory(unsafe.Add(first, fieldBytes*at), fieldBytes)
		content := bytesAt
		var value any
		switch field[8] {
		case 0:
			value = content(word(field, 16), word(field, 20))
		case 1:
			value = string(content(word(field, 16), word(field, 20)))
		case 2:
			value = int64(binary.LittleEndian.Uint64(field[16:]))
		case 3:
			value = math.Float64frombits(binary.LittleEndian.Uint64(field[16:]))
		default:
			shape := make([]uint32, word(field, 24))
			for axis := range shape {
				shape[axis] = *(*uint32)(unsafe.Add(pointer(word(field, 20)), 4*axis))
			}
			value = Tensor{Dtype(field[16]), shape, content(word(field, 28), word(field, 32))}
		}
		item.Fields = append(item.Fields, Field{string(content(word(field, 0), word(field, 4))), value})
	}
	return item
}

func lowerItems(items []*Item) unsafe.Pointer {
	first := allocate(itemBytes * uint32(len(items)))
	for at, item := range items {
		item.lower(memory(unsafe.Add(first, itemBytes*at), itemBytes))
	}
	return first
}

func (item *Item) lower(record []byte) {
	place, length := lowered([]byte(item.Key))
	put(record, 0, place, length)
	binary.LittleEndian.PutUint64(record[8:], item.Seed)
	first := allocate(fieldBytes * uint32(len(item.Fields)))
	for at, field := range item.Fields {
		field.lower(memory(unsafe.Add(first, fieldBytes*at), fieldBytes))
	}
	put(record, 16, uint32(uintptr(first)), uint32(len(item.Fields)))
}

func (field Field) lower(record []byte) {
	place, length := lowered([]byte(field.Name))
	put(record, 0, place, length)
	text := func(kind byte, bytes []byte) {
		record[8] = kind
		place, length := lowered(bytes)
		put(record, 16, place, length)
	}
	number := func(kind byte, bits uint64) {
		record[8] = kind
		binary.LittleEndian.PutUint64(record[16:], bits)
	}
	switch value := field.Value.(type) {
	case []byte:
		text(0, value)
	case string:
		text(1, []byte(value))
	case int64:
		number(2, uint64(value))
	case int:
		number(2, uint64(value))
	case float64:
		number(3, math.Float64bits(value))
	case Tensor:
		record[8], record[16] = 4, byte(value.Dtype)
		shape := make([]byte, 0, 4*len(value.Shape))
		for _, length := range value.Shape {
			shape = binary.LittleEndian.AppendUint32(shape, length)
		}
		place, _ := lowered(shape)
		put(record, 20, place, uint32(len(value.Shape)))
		place, length := lowered(value.Data)
		put(record, 28, place, length)
	default:
		panic(fmt.Sprintf("field `%s` is a %T; use []byte, string, int64, float64 or Tensor", field.Name, value))
	}
}

func (outcome Outcome) lower(record []byte) {
	record[0] = outcome.kind
	switch outcome.kind {
	case 0:
		outcome.items[0].lower(record[8:])
	case 2:
		put(record, 8, uint32(uintptr(lowerItems(outcome.items))), uint32(len(outcome.items)))
	case 4:
		place, length := lowered([]byte(outcome.message))
		put(record, 8, place, length)
	}
}

func main() {}
