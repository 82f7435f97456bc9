package jobs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
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

// postOf returns a post that wants every letter of the stream.
func postOf(stream []byte, room *postRoom) *post {
	return &post{r: bufio.NewReader(bytes.NewReader(stream)), room: room, vet: func(*letter) (bool, error) { return true, nil }}
}

// Letters that take much more memory than bytes on the wire: all connections
// together stay within one bound, others wait, and what was done goes back.
func TestLetterBombs(t *testing.T) {
	for name, held := range map[string]bool{"keys": false, "held batches": true} {
		t.Run(name, func(t *testing.T) {
			const bound = 16 << 20
			room := newPostRoom(bound, bound)
			stream := bomb(held, 60_000)
			before := liveBytes()
			var posts []*post
			var letters []*letter
			full := false
			for !full && len(posts) < 64 {
				p := postOf(stream, room)
				ctx, cancel := context.WithCancel(t.Context())
				if full = !room.parsed.TryAcquire(8 << 20); full {
					cancel() // it would wait for the others
				} else {
					room.parsed.Release(8 << 20)
				}
				posts = append(posts, p)
				l, err := p.readLetter(ctx)
				cancel()
				if err != nil && !full {
					t.Fatal(err)
				}
				letters = append(letters, l)
				if p.back != nil { // another host's letter comes next
					p.back()
					p.back = nil
				}
			}
			if got := liveBytes() - before; !full || got > 3*bound/2 {
				t.Errorf("%d letters take %d bytes, of a bound of %d; all were taken: %v", len(letters), got, bound, !full)
			}
			for _, p := range posts {
				p.done()
			}
			if !room.parsed.TryAcquire(bound) || !room.bytes.TryAcquire(bound) {
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

// Of a letter whose sender nobody knows nothing is kept, and the next one is read.
func TestUnwantedLettersAreSkipped(t *testing.T) {
	want := letters()[0]
	p := postOf(want.append(bomb(false, 1<<20)), newPostRoom(1<<20, 1<<20)) // less than the first one takes
	n := 0
	p.vet = func(*letter) (bool, error) { n++; return n == 2, nil }
	if got, err := p.readLetter(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	forged := errors.New("forged")
	p = postOf(bomb(false, 1<<20), newPostRoom(1<<20, 1<<20))
	p.vet = func(*letter) (bool, error) { return false, forged }
	if _, err := p.readLetter(t.Context()); !errors.Is(err, forged) || p.back != nil {
		t.Errorf("a letter that is not believed: %v", err)
	}
	p = postOf([]byte{255, 255, 255, 255}, newPostRoom(1, 1))
	if _, err := p.readLetter(t.Context()); !errors.Is(err, errLetter) {
		t.Errorf("a letter of 4 GiB: %v", err)
	}
}

// Whatever letters of one host are on their way and do not come, other hosts' are read, small ones of
// that host too, and all that was waited for goes back.
func TestSlowLettersHoldUpNobodyElse(t *testing.T) {
	room := newPostRoom(largeMemory, letterMemory)
	large := func(from string) []byte {
		l := letter{from: from, message: migrate.Message{Kind: migrate.Hold}}
		for i := range uint64(30_000) {
			l.message.Keys = append(l.message.Keys, plan.Keys{First: i * 1_000_000, Last: i*1_000_000 + 1})
		}
		return l.append(nil)
	}
	slow := large("10.0.0.66")
	var ends []*io.PipeWriter
	var waiting sync.WaitGroup
	for range 12 {
		r, w := io.Pipe()
		ends = append(ends, w)
		p := postOf(nil, room)
		p.r = bufio.NewReader(r)
		waiting.Go(func() {
			defer p.done()
			if _, err := p.readLetter(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
				t.Errorf("a letter that does not come: %v", err)
			}
		})
		if _, err := w.Write(slow[:letterHead+4]); err != nil { // by then it is read
			t.Fatal(err)
		}
	}
	for _, stream := range [][]byte{large("10.0.0.1"), (&letter{from: "10.0.0.66", message: migrate.Message{Kind: migrate.Join}}).append(nil)} {
		p := postOf(stream, room)
		if l, err := p.readLetter(t.Context()); err != nil || l == nil {
			t.Errorf("a letter of %d bytes beside them: %v", len(stream), err)
		}
		p.done()
	}
	for _, w := range ends {
		w.Close()
	}
	waiting.Wait()
	if !room.bytes.TryAcquire(largeMemory) || !room.parsed.TryAcquire(letterMemory) {
		t.Error("memory was not given back")
	}
}
