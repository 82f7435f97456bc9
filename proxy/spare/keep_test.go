package spare

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// budget is memory for tests.
type budget struct {
	mu          sync.Mutex // guards the rest
	limit, used int
}

func (b *budget) TryReserve(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.limit {
		return false
	}
	b.used += n
	return true
}

func (b *budget) Unreserve(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

// keptBytes returns what kept values reserve, counted anew.
func keptBytes(k *kept) (n int) {
	answers := map[*keptAnswer]int{}
	for _, v := range k.values {
		if v.of != nil {
			answers[v.of]++
		}
	}
	for a, values := range answers {
		if a.values != values {
			return -1
		}
		if a.reserved {
			n += a.bytes
		}
	}
	return n
}

// checkKept checks what package comments claim of kept values, against the requests on the link.
func checkKept(t *rapid.T, q *queue) {
	t.Helper()
	inFlight, needs := map[uint64]int{}, map[uint64]int{}
	for _, f := range q.frames[:q.sent] {
		for _, p := range f.pieces {
			if f.keep != keepNone {
				inFlight[p.Key]++
			}
			if f.keep == keepOrNot {
				needs[p.Key]++
			}
		}
	}
	for key, v := range q.kept.values {
		if v.inFlight != inFlight[key] || v.needs != needs[key] {
			t.Fatalf("of key %d there are %d requests in flight, %d need it; want %d, %d", key, v.inFlight, v.needs, inFlight[key], needs[key])
		}
		if v.needs == 0 && v.of != nil && !v.of.reserved || v.inFlight == 0 && v.value == nil {
			t.Fatalf("the value of key %d is there for nobody, %d bytes", key, len(v.value))
		}
		delete(inFlight, key)
	}
	if len(inFlight) > 0 {
		t.Fatalf("keys in flight are not there: %v", inFlight)
	}
}

// twoEnds is a client's queue, and what is on the way between it and the server.
type twoEnds struct {
	queue    queue
	notes    notes
	asked    [][]byte // frames to the server
	answered [][]byte // and back
	// expected has the values of each answer on the way, as the server has them then; nil: it is no pull, or fails.
	expected [][][]byte
}

// Whatever is left out of answers, pulls get the values that the store has when it does them: with several
// workers and clients, links that break, and memory that is too small.
func TestPullsGetWhatTheStoreHas(t *testing.T) {
	folder, n := t.TempDir(), 0
	spared, full, failed := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		store, err := OpenStore(filepath.Join(folder, fmt.Sprint(n)), StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Remove()
		server := NewServer(store, ServerOptions{})
		memory := &budget{limit: rapid.SampledFrom([]int{0, 500, 1000, 1 << 20}).Draw(t, "memory")}
		clients := []*twoEnds{{}, {}}
		for _, c := range clients {
			c.queue, c.notes = newQueue(true, 0, memory), notes{}
			c.queue.sendAgain(true)
		}
		timestamp := int32(1)
		if err := store.Push([]Ask{{0, timestamp}}, Int8, []Piece{{1, make([]byte, 50)}, {2, make([]byte, 100)}, {3, make([]byte, 150)}}); err != nil {
			t.Fatal(err)
		}
		send := func(t *rapid.T, push, pull bool) {
			timestamp++
			worker := rapid.Int32Range(0, 3).Draw(t, "worker")
			r := &Request{Worker: worker, Timestamp: timestamp, Kind: Int8, Push: push, Pull: pull}
			for range rapid.IntRange(1, 3).Draw(t, "pieces") {
				p := Piece{Key: rapid.Uint64Range(1, 4).Draw(t, "key")}
				if !push && rapid.IntRange(0, 9).Draw(t, "missing") == 0 {
					p.Key = 5 // nobody pushes it
				}
				if push {
					if slices.ContainsFunc(r.Pieces, func(o Piece) bool { return o.Key == p.Key }) {
						continue
					}
					p.Value = bytes.Repeat([]byte{byte(timestamp)}, int(p.Key)*50)
				}
				r.Pieces = append(r.Pieces, p)
			}
			clients[worker%2].queue.addRequest(r, shapeOf(r))
		}
		end := func(t *rapid.T) *twoEnds { return clients[rapid.IntRange(0, 1).Draw(t, "client")] }
		write := func(t *rapid.T, c *twoEnds) {
			frames, _ := c.queue.takeFrames(rapid.IntRange(1, 4).Draw(t, "frames"), 1<<20)
			for _, f := range frames {
				c.asked = append(c.asked, bytes.Join(appendFrames(nil, []*frame{f}), nil)[lengthSize:])
			}
		}
		serve := func(t *rapid.T, c *twoEnds) {
			if len(c.asked) == 0 {
				return
			}
			m, err := decodeMessage(c.asked[0])
			if err != nil {
				t.Fatal(err)
			}
			c.asked = c.asked[1:]
			answer, err := server.doRequest(&m, c.notes, nil)
			if err != nil {
				t.Fatal(err)
			}
			var expected [][]byte
			for i := 0; m.pull && i < len(m.pieces); i++ {
				value, ok := store.Pull(m.pieces[i].Key)
				if !ok {
					expected = nil
					break
				}
				expected = append(expected, bytes.Clone(value))
			}
			c.answered, c.expected = append(c.answered, answer[lengthSize:]), append(c.expected, expected)
		}
		hear := func(t *rapid.T, c *twoEnds) {
			if len(c.answered) == 0 {
				return
			}
			r, err := decodeReply(c.answered[0])
			if err != nil {
				t.Fatal(err)
			}
			_, left, ok := c.queue.takeAnswered(&r)
			if !ok {
				t.Fatalf("an answer is not understood: %+v", r)
			}
			if want := c.expected[0]; !slices.EqualFunc(r.values, want, bytes.Equal) {
				t.Fatalf("a pull gets %v, want %v", r.values, want)
			}
			if r.code != codeDone {
				failed++
			}
			spared += left
			if left == 0 && memory.limit == 500 && len(c.queue.kept.values) == 0 {
				full++
			}
			c.answered, c.expected = c.answered[1:], c.expected[1:]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				used := 0
				for _, c := range clients {
					used += keptBytes(&c.queue.kept)
					checkKept(t, &c.queue)
				}
				if used != memory.used || used > memory.limit {
					t.Fatalf("%d bytes are kept, %d count, of %d", used, memory.used, memory.limit)
				}
			},
			"send": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "requests") {
					does := rapid.IntRange(0, 9).Draw(t, "does")
					send(t, does < 2, does > 0)
				}
			},
			"write": func(t *rapid.T) { write(t, end(t)) },
			"serve": func(t *rapid.T) { serve(t, end(t)) },
			"hear":  func(t *rapid.T) { hear(t, end(t)) },
			"write, serve and hear": func(t *rapid.T) {
				c := end(t)
				write(t, c)
				for len(c.asked) > 0 {
					serve(t, c)
				}
				for len(c.answered) > 0 {
					hear(t, c)
				}
			},
			"break": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "breaks") > 0 {
					return
				}
				c := end(t)
				c.asked, c.answered, c.expected, c.notes = nil, nil, nil, notes{}
				c.queue.sendAgain(rapid.IntRange(0, 4).Draw(t, "keeps") > 0)
			},
		})
		for _, c := range clients {
			c.queue.kept.forgetAll()
		}
		if memory.used != 0 {
			t.Fatalf("%d bytes count that nothing keeps", memory.used)
		}
	})
	t.Logf("%d bytes were left out, %d times nothing was kept, %d requests failed", spared, full, failed)
	if spared == 0 || full == 0 || failed == 0 {
		t.Error("too little happened to tell anything")
	}
}

// Of the workers of a host that pull the same, one gets the values over the link, and the others after it do not, until
// somebody pushes; one worker alone has nothing kept.
func TestUnchangedValuesAreLeftOut(t *testing.T) {
	const size = 100_000
	s := newSite(t, StoreOptions{})
	traffic, memory := NewTraffic(nil), &budget{limit: 1 << 20}
	var got recorder
	c := runClient(t, ClientOptions{Dial: s.dial, Answer: got.note, Traffic: traffic, Memory: memory})
	timestamp := int32(0)
	send := func(worker int32, push bool) (value []byte) {
		timestamp++
		r := &Request{Worker: worker, Timestamp: timestamp, Push: push, Pull: !push, Kind: Int8, Pieces: []Piece{{Key: 7}}}
		if push {
			r.Pieces[0].Value = bytes.Repeat([]byte{1}, size)
		}
		c.Send(r)
		a := got.wait(t, worker, timestamp)
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		if push {
			return nil
		}
		return a.Values[0]
	}
	pulled := func(worker int32, want byte) (received uint64) {
		t.Helper()
		_, before := traffic.Bytes()
		if value := send(worker, false); !bytes.Equal(value, bytes.Repeat([]byte{want}, size)) {
			t.Errorf("worker %d pulls %d bytes of %d, want %d of %d", worker, len(value), value[0], size, want)
		}
		_, after := traffic.Bytes()
		return after - before
	}
	for _, step := range []struct {
		worker     int32
		push, left bool
	}{
		{worker: 1, push: true}, {worker: 1}, {worker: 1}, // alone
		{worker: 2}, {worker: 1, left: true}, {worker: 3, left: true},
		{worker: 2, push: true}, {worker: 1}, {worker: 2, left: true},
	} {
		if step.push {
			send(step.worker, true)
			continue
		}
		want := byte(1)
		if timestamp > 6 {
			want = 2
		}
		if n := pulled(step.worker, want); step.left != (n < size) {
			t.Errorf("request %d, of worker %d: %d bytes were received", timestamp, step.worker, n)
		}
	}
	if traffic.Spared() != 3*size {
		t.Errorf("%d bytes count as left out, want %d", traffic.Spared(), 3*size)
	}
	// The next link's server knows nothing of it, and sends all.
	s.stop()
	s.start()
	if n := pulled(1, 2); n < size {
		t.Errorf("over a new link: %d bytes", n)
	}
	if n := pulled(2, 2); n >= size {
		t.Errorf("over a new link, the second worker: %d bytes", n)
	}
}

// A server that leaves out what it was not told to ends the link.
func TestLeftOutUnasked(t *testing.T) {
	memory := &budget{limit: 1 << 20}
	k := kept{memory: memory, values: map[uint64]*keptValue{}}
	pieces := []Piece{{Key: 1}, {Key: 2}}
	if _, ok := k.takeAnswer(keepNone, pieces, [][]byte{{1}, nil}, 1); ok {
		t.Error("nothing is kept")
	}
	if how := k.addRequest(pieces); how != keepAnew {
		t.Errorf("the first request says %d", how)
	}
	if _, ok := k.takeAnswer(keepAnew, pieces, [][]byte{nil, {2}}, 1); ok {
		t.Error("all values were to be sent")
	}
	k.forgetAll()
	k.addRequest(pieces)
	if _, ok := k.takeAnswer(keepAnew, pieces, nil, 0); !ok { // it failed
		t.Error("a request may fail")
	}
	if len(k.values) > 0 {
		t.Errorf("%v is kept of a request that failed", slices.Collect(maps.Keys(k.values)))
	}
}

// While nobody reads, a link takes no more than it must, so that pushes of several workers are merged that a socket
// would have room for.
func TestBusyLinksMerge(t *testing.T) {
	const requests, size = 40, 64 << 10
	s := newSite(t, StoreOptions{})
	here, there, err := loopback()
	if err != nil {
		t.Fatal(err)
	}
	var got recorder
	links := make(chan Link, 1)
	links <- Link{Conn: here}
	c := runClient(t, ClientOptions{Merge: true, Answer: got.note, Dial: func(ctx context.Context) (Link, error) {
		select {
		case link := <-links:
			return link, nil
		case <-ctx.Done():
			return Link{}, ctx.Err()
		}
	}})
	push := func(worker int32) {
		for i := range int32(requests) {
			c.Send(&Request{Worker: worker, Timestamp: i, Push: true, Kind: Int8, Pieces: []Piece{{uint64(i), bytes.Repeat([]byte{1}, size)}}})
		}
	}
	sent := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.queue.sent
	}
	push(1)
	waitFor(t, "the link is busy", func() bool {
		raw, err := here.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		unsent := 0
		if err := raw.Control(func(fd uintptr) { unsent, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQNSD) }); err != nil {
			t.Fatal(err)
		}
		return err != nil || unsent > 0
	})
	push(2)
	frames, early := c.queue.number, sent()
	if early >= requests/2 || int(frames) > requests+early {
		t.Errorf("%d of %d requests went at once, and a second worker's took %d frames", early, requests, int(frames)-requests)
	}
	s.mu.Lock()
	server, ctx := s.server, s.ctx
	s.mu.Unlock()
	s.links.Go(func() {
		if err := server.Serve(ctx, there); err != nil {
			t.Error(err)
		}
	})
	for worker := range int32(2) {
		if a := got.wait(t, worker+1, requests-1); a.Err != nil {
			t.Error(a.Err)
		}
	}
}

// A request that keeps anew makes the server forget what it noted, even if it fails: the client may have nothing.
func TestKeptAnewIsForgotten(t *testing.T) {
	store := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer store.Close()
	server, noted := NewServer(store, ServerOptions{}), notes{}
	do := func(m message) reply {
		m.asks = []Ask{{1, 1}}
		b, err := server.doRequest(&m, noted, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := decodeReply(b[lengthSize:])
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	do(message{push: true, kind: Int8, pieces: []Piece{{1, []byte("a")}}})
	do(message{pull: true, keep: keepAnew, pieces: []Piece{{Key: 1}}})
	if r := do(message{pull: true, keep: keepOrNot, pieces: []Piece{{Key: 1}}}); r.values[0] != nil {
		t.Errorf("%q is sent, although the client keeps it", r.values[0])
	}
	if r := do(message{pull: true, keep: keepAnew, pieces: []Piece{{Key: 1}, {Key: 2}}}); r.code == codeDone {
		t.Error("a key that is not there was pulled")
	}
	if r := do(message{pull: true, keep: keepOrNot, pieces: []Piece{{Key: 1}}}); string(r.values[0]) != "a" {
		t.Errorf("%q is sent", r.values[0])
	}
}
