// A stage that does what its text says.
package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

var calls = map[string]func(item *Item) (any, error){
	"print": func(*Item) (any, error) {
		fmt.Println("out")
		fmt.Fprintln(os.Stderr, "err")
		Log(Warn, "logged %d", 7)
		return "printed", nil
	},
	"error":  func(*Item) (any, error) { return nil, errors.New("no words") },
	"panic":  func(*Item) (any, error) { panic("at the disco") },
	"nil":    func(*Item) (any, error) { var none *Item; return none.Key, nil },
	"random": func(item *Item) (any, error) { return int64(item.Rand().Uint64() >> 1), nil },
	"clock":  func(*Item) (any, error) { return time.Now().UTC().String(), nil },
	"sleep": func(*Item) (any, error) {
		time.Sleep(time.Hour)
		return "slept", nil
	},
	"file": func(*Item) (any, error) { return os.ReadFile("/etc/passwd") },
	"environment": func(*Item) (any, error) {
		return fmt.Sprint(os.Environ(), os.Args), nil
	},
	"routine": func(*Item) (any, error) {
		answer := make(chan string)
		go func() { answer <- "from a goroutine" }()
		return <-answer, nil
	},
	"deadlock": func(*Item) (any, error) { return <-make(chan string), nil },
	"map": func(*Item) (any, error) {
		sum := 0
		for number := range map[int]bool{1: true, 2: true, 3: true} {
			sum += number
		}
		return sum, nil
	},
	"type":   func(*Item) (any, error) { return []string{"a"}, nil },
	"tensor": func(*Item) (any, error) { return Tensor{Int16, []uint32{2, 1}, []byte{1, 0, 2, 0}}, nil },
	"wrong":  func(*Item) (any, error) { return Tensor{Int16, []uint32{3}, []byte{1}}, nil },
	"deep":   func(*Item) (any, error) { return deep(1), nil },
	"memory": func(*Item) (any, error) { return len(make([]byte, 1<<30)), nil },
	"exit": func(*Item) (any, error) {
		os.Exit(3)
		return nil, nil
	},
	"asset": func(*Item) (any, error) { return Asset("nothing") },
	"global": func(*Item) (any, error) {
		rand.Uint64()
		return "drawn", nil
	},
	"loop": func(*Item) (any, error) {
		for {
		}
	},
}

func deep(depth int) int { return 1 + deep(depth+1) }

func init() {
	Register(Each(func(item *Item) (Outcome, error) {
		text, err := item.Text("text")
		if err != nil {
			return Outcome{}, err
		}
		if text == "split" {
			return Many(item.Child(0), item.Child(1)), nil
		}
		made, err := calls[text](item)
		if err != nil {
			return Outcome{}, err
		}
		item.Set("made", made)
		return Keep(item), nil
	}))
}
