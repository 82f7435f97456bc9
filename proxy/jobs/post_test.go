package jobs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/psidecar/psidecar/proxy/migrate"
)

// bomb is a letter of many parts that take two bytes each, or three.
func bomb(held bool, n int) []byte {
	l := letter{message: migrate.Message{Kind: migrate.Hold}}
	b := l.append(nil)
	b = b[:len(b)-2] // without the numbers of keys and of held batches
	if held {
		b = binary.AppendUvarint(append(b, 0), uint64(n))
		b = append(b, make([]byte, 3*n)...)
	} else {
		b = binary.AppendUvarint(b, uint64(n))
		for range n {
			b = append(b, 1, 0)
		}
		b = append(b, 0)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// Letters that take much more memory than bytes on the wire: all connections
// together stay within one bound, others wait, and what was done goes back.
func TestLetterBombs(t *testing.T) {
	for name, held := range map[string]bool{"keys": false, "held batches": true} {
		t.Run(name, func(t *testing.T) {
			bound := semaphore.NewWeighted(16 << 20)
			stream := bomb(held, 60_000)
			before := liveBytes()
			var posts []*post
			var letters []*letter
			full := false
			for range 64 {
				p := &post{r: bytes.NewReader(stream), bound: bound}
				ctx, cancel := context.WithCancel(t.Context())
				if full = !bound.TryAcquire(8 << 20); full {
					cancel() // it would wait for the others
				} else {
					bound.Release(8 << 20)
				}
				l, err := p.readLetter(ctx)
				cancel()
				posts = append(posts, p)
				if err != nil && !full {
					t.Fatal(err)
				}
				if full {
					break
				}
				letters = append(letters, l)
			}
			if got := liveBytes() - before; !full || got > 24<<20 {
				t.Errorf("%d letters take %d bytes, of a bound of %d; all were taken: %v", len(letters), got, 16<<20, !full)
			}
			for _, p := range posts {
				p.done()
			}
			if !bound.TryAcquire(16 << 20) {
				t.Error("memory was not given back")
			}
			runtime.KeepAlive(letters)
		})
	}
}

func liveBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What a letter costs is not less than what it takes.
func TestCostOfLetter(t *testing.T) {
	for name, b := range map[string][]byte{"keys": bomb(false, 1<<20), "held batches": bomb(true, 1<<18)} {
		cost, err := costOfLetter(b[4:])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		before := liveBytes()
		l, err := parseLetter(b[4:])
		if got := liveBytes() - before; err != nil || got > int64(cost) || got < int64(cost)/4 {
			t.Errorf("%s: %d bytes take %d, the cost is said to be %d, %v", name, len(b), got, cost, err)
		}
		runtime.KeepAlive(l)
	}
	if _, err := costOfLetter(bomb(true, 4<<20)[4:]); !errors.Is(err, errLetter) {
		t.Errorf("a letter of 512 MiB: %v", err)
	}
}

// A letter that claims to be long takes memory as it comes.
func TestLetterThatOnlyClaims(t *testing.T) {
	bound := semaphore.NewWeighted(postMemory)
	p := post{r: bytes.NewReader(binary.BigEndian.AppendUint32(nil, maxLetter)), bound: bound}
	if _, err := p.readLetter(t.Context()); !errors.Is(err, io.EOF) || p.held > 2*letterStep {
		t.Errorf("%d bytes are taken for a letter that does not come, %v", p.held, err)
	}
	p.done()
	if _, err := (&post{r: bytes.NewReader([]byte{255, 255, 255, 255}), bound: bound}).readLetter(t.Context()); !errors.Is(err, errLetter) {
		t.Errorf("a letter of 4 GiB: %v", err)
	}
}
