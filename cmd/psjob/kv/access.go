// This part keeps and stores the truth about a worker: how often it pushed and pulled
// each key, and how many bytes of values went either way. What a watcher of the
// network reports is compared with it.
//
// A file is text. The line "# worker RANK" is followed by a line for each key in
// ascending order: the key, pushes, bytes pushed, pulls, bytes pulled. Bytes are those
// of the values alone. Every request counts once, when it has been answered; what a
// resender repeats does not count.

package kv

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
)

// AccessCounts are the accesses of one worker to one key.
type AccessCounts struct {
	Pushes, Pulls        uint32
	PushBytes, PullBytes uint64
}

// An AccessLog counts accesses. It takes 40 to 56 bytes a key and is not safe for
// concurrent use. The zero AccessLog is empty. counts is indexed by the index's
// numbers and is as long as it has keys.
type AccessLog struct {
	index   StoreIndex
	counts  []AccessCounts
	numbers []uint32 // of the keys of the request at hand; reused
}

// Push counts a push of len(keys) values of width floats each, or of lens[i] floats
// if lens is not nil. The slices are not kept.
func (l *AccessLog) Push(keys []uint64, width int, lens []int32) {
	l.touch(keys)
	for i, n := range l.numbers {
		c := &l.counts[n]
		c.Pushes++
		c.PushBytes += valueBytes(i, width, lens)
	}
}

// Pull counts a pull that was answered with values of that shape.
func (l *AccessLog) Pull(keys []uint64, width int, lens []int32) {
	l.touch(keys)
	for i, n := range l.numbers {
		c := &l.counts[n]
		c.Pulls++
		c.PullBytes += valueBytes(i, width, lens)
	}
}

func valueBytes(i, width int, lens []int32) uint64 {
	if lens != nil {
		width = int(lens[i])
	}
	return uint64(width) * 4
}

// touch sets numbers to those of the keys, and makes room for the counts of new ones.
func (l *AccessLog) touch(keys []uint64) {
	l.numbers = slices.Grow(l.numbers[:0], len(keys))[:len(keys)]
	l.index.Numbers(keys, l.numbers)
	l.counts = slices.Grow(l.counts, l.index.Len()-len(l.counts))[:l.index.Len()]
}

// Len returns the number of keys.
func (l *AccessLog) Len() int { return l.index.Len() }

// All yields the keys in ascending order with their counts. It sorts all keys with
// each call.
func (l *AccessLog) All() iter.Seq2[uint64, AccessCounts] {
	return func(yield func(uint64, AccessCounts) bool) {
		keys := l.index.Keys()
		order := make([]uint32, len(keys))
		for i := range order {
			order[i] = uint32(i)
		}
		slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(keys[a], keys[b]) })
		for _, n := range order {
			if !yield(keys[n], l.counts[n]) {
				return
			}
		}
	}
}

// WriteFile stores the log of a worker. On an error the file may be there and
// incomplete.
func (l *AccessLog) WriteFile(path string, rank int) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the access log: %w", err)
	}
	out := bufio.NewWriter(f)
	fmt.Fprintln(out, "# worker", rank)
	for key, c := range l.All() {
		fmt.Fprintln(out, key, c.Pushes, c.PushBytes, c.Pulls, c.PullBytes)
	}
	// Flush returns the first error of all that was written.
	if err := errors.Join(out.Flush(), f.Close()); err != nil {
		return fmt.Errorf("writing the access log %s: %w", path, err)
	}
	return nil
}
