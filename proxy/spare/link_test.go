package spare

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// worker is a worker of a test, which adds to numbers of its own in all values.
type worker struct {
	id      int32
	pushed  map[uint64]int // by key: what it has sent
	answers map[int32]int  // by timestamp
	// least has what a pull must see at least.
	least    map[int32]map[uint64]int
	amounts  map[int32]map[uint64]int   // by timestamp and key: what a push has
	answered map[uint64]int             // by key: of pushes that are answered
	others   map[int32][]map[uint64]int // by timestamp: answered of all workers, when it was sent
	repeats  []*Request                 // that may be sent once more
	repeated map[int32]bool
}

// Links break at any byte, servers restart, requests of workers are repeated, and proxies have several
// workers: sums are exact, each request is answered once, and each worker sees what it pushed.
func TestSumsAreExactWhateverBreaks(t *testing.T) {
	for _, merge := range []bool{false, true} {
		for _, buffered := range []bool{false, true} {
			t.Run(fmt.Sprintf("merge %v, buffered %v", merge, buffered), func(t *testing.T) { testSums(t, merge, buffered, 0) })
		}
	}
	t.Run("merge, buffered, wait", func(t *testing.T) { testSums(t, true, true, time.Millisecond) })
}

func testSums(t *testing.T, merge, buffered bool, wait time.Duration) {
	const hosts, perHost, keys, steps = 2, 3, 4, 120
	s := newSite(t, StoreOptions{})
	s.buffered = buffered
	var mu sync.Mutex // guards all workers and random
	random := rand.New(rand.NewPCG(5, 6))
	intN := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	workers := make([]*worker, hosts*perHost)
	for i := range workers {
		workers[i] = &worker{id: int32(i), pushed: map[uint64]int{}, answers: map[int32]int{}, least: map[int32]map[uint64]int{}, amounts: map[int32]map[uint64]int{}, answered: map[uint64]int{}, others: map[int32][]map[uint64]int{}, repeated: map[int32]bool{}}
	}
	size := func(key uint64) int { return 8 * len(workers) * (1 + 100*int(key)) } // of a value
	answer := func(a Answer) {
		mu.Lock()
		defer mu.Unlock()
		w := workers[a.Request.Worker]
		w.answers[a.Request.Timestamp]++
		if a.Err != nil {
			t.Errorf("worker %d, request %d: %v", w.id, a.Request.Timestamp, a.Err)
			return
		}
		if w.answers[a.Request.Timestamp] == 1 {
			for key, n := range w.amounts[a.Request.Timestamp] {
				w.answered[key] += n
			}
		}
		if !a.Request.Pull {
			return
		}
		for i, p := range a.Request.Pieces {
			if len(a.Values) != len(a.Request.Pieces) || len(a.Values[i]) != size(p.Key) {
				t.Errorf("a pull of worker %d has other values than it should", w.id)
				return
			}
			got := int(binary.LittleEndian.Uint64(a.Values[i][8*w.id:]))
			if got < w.least[a.Request.Timestamp][p.Key] || got > w.pushed[p.Key] {
				t.Errorf("worker %d pulls %d of what it pushed for key %d; it had pushed %d before, and %d by now",
					w.id, got, p.Key, w.least[a.Request.Timestamp][p.Key], w.pushed[p.Key])
			}
			for j, answered := range w.others[a.Request.Timestamp] {
				if got := int(binary.LittleEndian.Uint64(a.Values[i][8*j:])); got < answered[p.Key] || got > workers[j].pushed[p.Key] {
					t.Errorf("worker %d pulls %d of what worker %d pushed for key %d; pushes of %d were answered before", w.id, got, j, p.Key, answered[p.Key])
				}
			}
		}
	}
	var traffic Traffic
	memory := &budget{limit: 60_000}
	clients := make([]*Client, hosts)
	for i := range clients {
		clients[i] = runClient(t, ClientOptions{Merge: merge, Wait: wait, Answer: answer, Traffic: &traffic, Memory: memory, Dial: func(ctx context.Context) (Link, error) {
			link, err := s.dial(ctx)
			if err != nil || intN(5) == 0 {
				return link, err
			}
			return Link{&weak{Conn: link, left: 1 + intN(20_000)}, intN(4) > 0}, nil
		}})
	}
	// All keys are there before anybody pulls.
	value := func(w *worker, key uint64, n int) []byte {
		b := make([]byte, size(key))
		for i := range len(b) / 8 {
			if i%len(workers) == int(w.id) {
				binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
			}
		}
		return b
	}
	sent := uint64(0)
	for step := range int32(steps) {
		most := intN(32) // what most workers do: whether they push, and for which keys, as bits
		for i, w := range workers {
			does := most
			if intN(6) == 0 {
				does = intN(32)
			}
			r := &Request{Worker: w.id, Timestamp: step, Push: step == 0 || does%2 == 0, Kind: Int64}
			r.Pull = !r.Push || intN(6) == 0
			sent++
			for key := range uint64(keys) {
				if step == 0 || does>>(key+1)&1 == 1 {
					r.Pieces = append(r.Pieces, Piece{Key: key})
				}
			}
			mu.Lock()
			w.amounts[step] = map[uint64]int{}
			for j := range r.Pieces {
				p := &r.Pieces[j]
				if r.Push {
					n := 1 + random.IntN(1000)
					w.pushed[p.Key] += n
					w.amounts[step][p.Key] = n
					p.Value = value(w, p.Key, n)
				}
			}
			w.least[step] = map[uint64]int{}
			for key, n := range w.pushed {
				w.least[step][key] = n
			}
			for _, o := range workers {
				w.others[step] = append(w.others[step], maps.Clone(o.answered))
			}
			mu.Unlock()
			again := &Request{Worker: r.Worker, Timestamp: r.Timestamp, Push: r.Push, Pull: r.Pull, Kind: Int64, Single: true}
			for _, p := range r.Pieces {
				again.Pieces = append(again.Pieces, Piece{p.Key, bytes.Clone(p.Value)})
			}
			if intN(3) == 0 {
				w.repeats = append(w.repeats, again)
			}
			c := clients[i/perHost]
			c.Send(r)
			if len(w.repeats) > 0 && intN(4) == 0 {
				// Some wait still, and are dropped. The others have an answer already.
				j := intN(len(w.repeats))
				mu.Lock()
				w.repeated[w.repeats[j].Timestamp] = true
				mu.Unlock()
				c.Send(w.repeats[j])
				sent++
				w.repeats = slices.Delete(w.repeats, j, j+1)
			}
		}
		if step%50 == 30 {
			s.stop()
			s.start()
		}
		if step%10 == 0 {
			for _, c := range clients {
				waitFor(t, "the backlog is small", func() bool { messages, _ := c.Backlog(); return messages < 20 })
			}
		}
	}
	for _, c := range clients {
		waitFor(t, "all is answered", func() bool {
			messages, size := c.Backlog()
			return messages == 0 && size == 0
		})
	}
	s.stop()
	store := mustOpen(t, s.path, s.opts)
	defer store.Close()
	mu.Lock()
	defer mu.Unlock()
	for key := range uint64(keys) {
		got, _ := store.Pull(key)
		for i := range len(got) / 8 {
			w := workers[i%len(workers)]
			if n := int(binary.LittleEndian.Uint64(got[8*i:])); n != w.pushed[key] {
				t.Fatalf("key %d has %d of worker %d, want %d", key, n, w.id, w.pushed[key])
			}
		}
		if len(got) != size(key) {
			t.Errorf("key %d has %d bytes", key, len(got))
		}
	}
	for _, w := range workers {
		for step := range int32(steps) {
			if n := w.answers[step]; n != 1 && (n != 2 || !w.repeated[step]) {
				t.Errorf("request %d of worker %d has %d answers", step, w.id, w.answers[step])
			}
		}
	}
	frames := clients[0].queue.number + clients[1].queue.number
	if merge && (!buffered || wait > 0) && frames > sent*9/10 || !merge && frames < hosts*perHost*steps {
		t.Errorf("%d requests went in %d frames", sent, frames)
	}
	if traffic.Spared() == 0 {
		t.Error("no value was left out")
	}
	t.Logf("%d requests went in %d frames, and %d bytes of values were left out", sent, frames, traffic.Spared())
}

func TestErrorsAreAnswers(t *testing.T) {
	s := newSite(t, StoreOptions{Limit: 1 << 20})
	var got recorder
	rooms := make(chan struct{}, 100)
	c := runClient(t, ClientOptions{Dial: s.dial, Answer: got.note, Room: func() { rooms <- struct{}{} }})
	waitFor(t, "the client is connected", c.Connected)
	if free := c.Free(); free <= 0 || free > 1<<20 {
		t.Errorf("%d bytes are free", free)
	}
	send := func(timestamp int32, r Request) Answer {
		r.Worker, r.Timestamp = 1, timestamp
		c.Send(&r)
		return got.wait(t, 1, timestamp)
	}
	if a := send(1, Request{}); a.Err == nil {
		t.Error("a request to do nothing")
	}
	if a := send(2, Request{Push: true, Pieces: []Piece{{1, make([]byte, 3)}}}); a.Err == nil {
		t.Error("a part of a number")
	}
	if a := send(3, Request{Push: true, Pieces: []Piece{{1, make([]byte, mostFrame)}}}); a.Err == nil {
		t.Error("a frame that is too large")
	}
	if a := send(4, Request{Pull: true, Pieces: []Piece{{1, nil}}}); a.Err == nil || !strings.Contains(a.Err.Error(), "key 1 ") {
		t.Errorf("a pull of what is not there: %v", a.Err)
	}
	if a := send(5, Request{Push: true, Pieces: []Piece{{1, make([]byte, 4<<20)}}}); !errors.Is(a.Err, ErrNoRoom) {
		t.Errorf("a push that does not fit: %v", a.Err)
	}
	if a := send(6, Request{Push: true, Pull: true, Pieces: []Piece{{1, []byte("abcd")}}}); a.Err != nil || string(a.Values[0]) != "abcd" {
		t.Errorf("a push that fits: %q, %v", a.Values, a.Err)
	}
	if a := send(7, Request{Push: true, Pieces: []Piece{{1, make([]byte, 8)}}}); a.Err == nil || errors.Is(a.Err, ErrNoRoom) {
		t.Errorf("another length: %v", a.Err)
	}
	<-rooms
}

// A request that waits is not sent twice.
func TestRepetitionsOfWhatWaitsAreDropped(t *testing.T) {
	s := newSite(t, StoreOptions{})
	var got recorder
	gate := make(chan struct{})
	c := runClient(t, ClientOptions{Merge: true, Answer: got.note, Dial: s.dialAfter(gate)})
	push := func(w, timestamp int32, key uint64) {
		c.Send(&Request{Worker: w, Timestamp: timestamp, Push: true, Kind: Int8, Pieces: []Piece{{key, []byte{byte(w)}}}})
	}
	push(1, 1, 5)
	push(2, 1, 5)
	push(1, 2, 6)
	push(1, 1, 5)
	if messages, size := c.Backlog(); messages != 3 || size == 0 {
		t.Errorf("%d messages, %d bytes wait", messages, size)
	}
	c.Send(&Request{Worker: 1, Timestamp: 3, Pull: true, Pieces: []Piece{{5, nil}, {6, nil}}})
	close(gate)
	if a := got.wait(t, 1, 3); a.Err != nil || !slices.EqualFunc(a.Values, [][]byte{{3}, {1}}, bytes.Equal) {
		t.Errorf("%v, %v", a.Values, a.Err)
	}
	if n := got.count(); n != 4 {
		t.Errorf("%d answers, want 4", n)
	}
}

// Values belong to a message of which the caller keeps the bytes.
func TestMergingDoesNotChangeValues(t *testing.T) {
	s := newSite(t, StoreOptions{})
	var got recorder
	gate := make(chan struct{})
	c := runClient(t, ClientOptions{Merge: true, Answer: got.note, Dial: s.dialAfter(gate)})
	const workers = 4
	kept, want := make([][]byte, workers), make([][]byte, workers)
	for w := range int32(workers) {
		b := append(numbers(Int32, 1+int(w), 20+int(w)), bytes.Repeat([]byte{byte(1 + w)}, leastApart)...)
		kept[w], want[w] = b, bytes.Clone(b)
		c.Send(&Request{Worker: w, Timestamp: 1, Push: true, Kind: Int32, Pieces: []Piece{{1, b[:4:4]}, {2, b[4:8]}, {3, b[8:]}}})
	}
	c.Send(&Request{Worker: 0, Timestamp: 2, Pull: true, Pieces: []Piece{{1, nil}, {2, nil}, {3, nil}}})
	close(gate)
	sum := [][]byte{numbers(Int32, 1+2+3+4), numbers(Int32, 20+21+22+23), bytes.Repeat([]byte{1 + 2 + 3 + 4}, leastApart)}
	if a := got.wait(t, 0, 2); a.Err != nil || !slices.EqualFunc(a.Values, sum, bytes.Equal) {
		t.Errorf("the sums are wrong: %v", a.Err)
	}
	if c.queue.number != 2 {
		t.Errorf("%d frames were sent, want 2: nothing was merged", c.queue.number)
	}
	for w := range kept {
		if !bytes.Equal(kept[w], want[w]) {
			t.Errorf("the values of worker %d have changed", w)
		}
	}
}

// A link of a server that has no store any more ends without an answer, and so does a new one.
func TestReleasedServerAnswersNothing(t *testing.T) {
	store := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer store.Close()
	server := NewServer(store, ServerOptions{})
	for _, released := range []bool{false, true} {
		here, there := net.Pipe()
		result := make(chan error)
		go func() { result <- server.Serve(context.Background(), there) }()
		if !released {
			if _, err := readFrame(here); err != nil {
				t.Fatal(err)
			}
			if server.Release() != store || server.Release() != nil {
				t.Error("the store is not released once")
			}
			m := message{push: true, asks: []Ask{{1, 1}}, pieces: []Piece{{1, make([]byte, 4)}}}
			if _, err := here.Write(encodeMessage(&m)); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := here.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes are answered, %v", n, err)
		}
		here.Close()
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if _, ok := store.Pull(1); ok {
		t.Error("a request was done after Release")
	}
}

// While one server after another has the store, each request is answered and applied once.
func TestStoreGoesToAnotherServer(t *testing.T) {
	s := newSite(t, StoreOptions{})
	var got recorder
	c := runClient(t, ClientOptions{Merge: true, Answer: got.note, Dial: s.dial})
	const rounds, workers, pushes = 20, 3, 8
	sent, timestamp := 0, int32(0)
	push := func() {
		timestamp++
		for w := range int32(workers) {
			c.Send(&Request{Worker: w, Timestamp: timestamp, Push: true, Kind: Int32, Pieces: []Piece{{1, numbers(Int32, 1)}}})
			sent++
		}
	}
	for round := range rounds {
		for range pushes {
			push()
		}
		if round%2 == 0 { // otherwise some are in flight
			waitFor(t, "all is answered", func() bool { return got.count() == sent })
		}
		s.release()
		before := got.count()
		push()
		push()
		if round%2 == 0 && got.count() != before {
			t.Fatal("a server without a store has answered")
		}
		s.takeUp()
	}
	waitFor(t, "all is answered", func() bool { return got.count() >= sent })
	c.Send(&Request{Worker: 0, Timestamp: timestamp + 1, Pull: true, Pieces: []Piece{{1, nil}}})
	if a := got.wait(t, 0, timestamp+1); a.Err != nil || !bytes.Equal(a.Values[0], numbers(Int32, sent)) {
		t.Errorf("the sum is %v, want %v; %v", a.Values, numbers(Int32, sent), a.Err)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	if got.n != sent+1 || len(got.got) != sent+1 {
		t.Errorf("%d answers to %d requests, want %d", got.n, len(got.got), sent+1)
	}
	for ask, a := range got.got {
		if a.Err != nil {
			t.Errorf("%v: %v", ask, a.Err)
		}
	}
}

// What waits is sent as one frame, and its answer goes to all.
func TestWaitingRequestsAreMerged(t *testing.T) {
	s := newSite(t, StoreOptions{})
	var got recorder
	gate := make(chan struct{})
	c := runClient(t, ClientOptions{Merge: true, Answer: got.note, Dial: s.dialAfter(gate)})
	const workers = 8
	for step := range int32(3) {
		for w := range int32(workers) {
			c.Send(&Request{Worker: w, Timestamp: 2 * step, Push: true, Pieces: []Piece{{1, numbers(0, 1, int(w))}, {2, numbers(0, 5)}}})
			c.Send(&Request{Worker: w, Timestamp: 2*step + 1, Pull: true, Pieces: []Piece{{2, nil}, {1, nil}}})
		}
	}
	close(gate)
	for step := range int32(3) {
		for w := range int32(workers) {
			got.wait(t, w, 2*step)
			a, n := got.wait(t, w, 2*step+1), int(step+1)
			if a.Err != nil || !slices.EqualFunc(a.Values, [][]byte{numbers(0, n*workers*5), numbers(0, n*workers, n*28)}, bytes.Equal) {
				t.Errorf("worker %d, step %d: %v, %v", w, step, a.Values, a.Err)
			}
		}
	}
	if c.queue.number != 6 {
		t.Errorf("%d frames were sent, want 6", c.queue.number)
	}
}

// What is not a request ends the link with an error, and no other link.
func TestServerEndsLinksOfStrangers(t *testing.T) {
	store := mustOpen(t, filepath.Join(t.TempDir(), "store"), StoreOptions{})
	defer store.Close()
	server := NewServer(store, ServerOptions{})
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "\x05\x00\x00\x00hello", "\x00\x00\x00\x00"} {
		here, there := net.Pipe()
		result := make(chan error)
		go func() { result <- server.Serve(context.Background(), there) }()
		go here.Write([]byte(text))
		all, _ := io.ReadAll(here)
		if err := <-result; !errors.Is(err, errForm) || len(all) > lengthSize+freeSize {
			t.Errorf("%q: %v, and %d bytes are answered", text, err, len(all))
		}
		here.Close()
	}
}

// A client that does not read its answers has no more requests read, and hinders nobody.
func TestAnswersThatNobodyReadsAreBounded(t *testing.T) {
	s := newSite(t, StoreOptions{})
	var got recorder
	c := runClient(t, ClientOptions{Dial: s.dial, Answer: got.note})
	const size = 16 << 20
	c.Send(&Request{Worker: 1, Timestamp: 1, Push: true, Pieces: []Piece{{1, make([]byte, size)}}})
	got.wait(t, 1, 1)
	lazy, err := s.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lazy.Close()
	var written atomic.Int64
	go func() {
		for n := int64(1); ; n++ {
			m := message{pull: true, number: uint64(n), asks: []Ask{{2, int32(n)}}, pieces: []Piece{{Key: 1}}}
			if _, err := lazy.Write(encodeMessage(&m)); err != nil {
				return
			}
			written.Store(n)
		}
	}()
	const most = mostWaiting / size
	waitFor(t, "pulls were read", func() bool { return written.Load() >= most })
	for timestamp := range int32(10) {
		c.Send(&Request{Worker: 1, Timestamp: 2 + timestamp, Pull: true, Pieces: []Piece{{1, nil}}})
		if a := got.wait(t, 1, 2+timestamp); a.Err != nil {
			t.Error(a.Err)
		}
	}
	if n := written.Load(); n > most+2 {
		t.Errorf("%d pulls of %d bytes each are read, and nobody reads the answers", n, size)
	}
}
