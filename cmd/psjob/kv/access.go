// This part keeps and stores the truth about a worker: how often it pushed and pulled
// each key, and how many bytes of values went either way. What a watcher of the
// network reports is compared with it.
//
// A file is one zstd stream. Inside is one line of JSON, the [AccessHeader], and then
// for each key in ascending order five unsigned varints: the difference from the
// previous key (the first key itself), pushes, bytes pushed, pulls, bytes pulled.
// Bytes are those of the values alone. Every request counts once, when it has been
// answered; what a resender repeats does not count.

package kv

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// AccessCounts are the accesses of one worker to one key.
type AccessCounts struct {
	Pushes, Pulls        uint32
	PushBytes, PullBytes uint64
}

// AccessHeader is the first line of a file.
type AccessHeader struct {
	Format string `json:"format"` // "psjob-access-1"
	Node   int    `json:"node"`   // the worker's PS-lite id
	Rank   int    `json:"rank"`
	Keys   int    `json:"keys"`
}

const format = "psjob-access-1"

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
func (l *AccessLog) WriteFile(path string, node, rank int) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing the access log: %w", err)
	}
	err = l.write(f, AccessHeader{Format: format, Node: node, Rank: rank, Keys: l.Len()})
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("writing the access log %s: %w", path, err)
	}
	return nil
}

// write writes the log in the file's format. Compression is the fastest: it is at the
// end of a job whose nodes wait for each other.
func (l *AccessLog) write(w io.Writer, h AccessHeader) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return err
	}
	// Records are a few bytes each. Without the buffer every one would be a call of
	// the compressor.
	out := bufio.NewWriterSize(z, 1<<16)
	if err := json.NewEncoder(out).Encode(h); err != nil {
		return err
	}
	var record []byte
	last := uint64(0)
	// Ascending keys have small differences, which take a byte or two.
	for key, c := range l.All() {
		record = binary.AppendUvarint(record[:0], key-last)
		record = binary.AppendUvarint(record, uint64(c.Pushes))
		record = binary.AppendUvarint(record, c.PushBytes)
		record = binary.AppendUvarint(record, uint64(c.Pulls))
		record = binary.AppendUvarint(record, c.PullBytes)
		last = key
		if _, err := out.Write(record); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	// The end of the stream is written by closing it; without it a reader finds the
	// file cut off.
	return z.Close()
}
