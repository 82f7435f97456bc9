package shared

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/keylist"
)

// world is both ends of a group, its lane and its links, all of which a test moves step
// by step. What each link is to bring is written down in the obvious way.
type world struct {
	t        testing.TB
	rng      *rand.Rand
	source   *Source
	store    *Store
	links    []*testLink
	late     []*testLink // ended at their receiver, which their sender has not noticed
	numbers  uint64
	there    []byte // on the lane
	back     []byte
	reader   *pieces
	ended    chan error
	told     *pieces
	heard    chan error
	versions [4]byte // of what each subject's answers are now
	resolved int
	pool     [poolKeys]byte // versions of keys' values
	mu       sync.Mutex     // guards requests
	requests [][]byte       // keys of each request
}

// testLink is a link: messages on their way, and what its process must get.
type testLink struct {
	number  uint64
	outlet  *Outlet
	flying  []testMessage
	using   *testMessage // the process has not read it all
	holds   []byte       // its values
	stalled bool
	ended   bool // at its sender
}

type testMessage struct {
	isRef  bool
	number uint64
	want   []byte
}

const (
	testLimit = 40 << 10
	testSizes = 4
)

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), source: NewSource(testLimit, nil), store: NewStore(testLimit, nil)}
	w.store.grow(testLimit / 2)
	w.attach()
	for range 3 {
		w.link()
	}
	return w
}

func (w *world) link() {
	w.numbers++
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(w.numbers%5))
	w.links = append(w.links, &testLink{number: w.numbers, outlet: w.source.Join(w.numbers, to)})
}

// pieces is a stream that comes in pieces: a read waits for one, and for its being
// taken.
type pieces struct {
	in   chan []byte
	want chan bool // the reader has taken all and wants more
	left []byte
}

func (p *pieces) Read(b []byte) (int, error) {
	for len(p.left) == 0 {
		p.want <- true
		more, ok := <-p.in
		if !ok {
			return 0, io.EOF
		}
		p.left = more
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}

func newPieces() *pieces { return &pieces{in: make(chan []byte), want: make(chan bool)} }

// attach begins a lane.
func (w *world) attach() {
	w.there, w.back = nil, w.store.appendStart(nil)
	w.reader, w.told = newPieces(), newPieces()
	w.ended, w.heard = make(chan error, 1), make(chan error, 1)
	go func(p *pieces) { w.ended <- w.store.read(bufio.NewReaderSize(p, 16), w.keysOf) }(w.reader)
	go func(p *pieces) { w.heard <- w.source.read(bufio.NewReaderSize(p, 16)) }(w.told)
	<-w.reader.want
	<-w.told.want
	w.store.attach(true)
}

// cut ends the lane at any byte.
func (w *world) cut() {
	for p, ended := range map[*pieces]chan error{w.reader: w.ended, w.told: w.heard} {
		close(p.in)
		if err := <-ended; err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			w.t.Fatalf("a lane that was cut: %v", err)
		}
	}
	w.source.detach()
	w.store.attach(false)
	w.attach()
}

// carry moves some bytes of what is on the lane to a reader.
func (w *world) carry(from *[]byte, to *pieces, ended chan error, n int) {
	n = min(n, len(*from))
	if n == 0 {
		return
	}
	to.in <- (*from)[:n:n]
	*from = (*from)[n:]
	select {
	case <-to.want:
	case err := <-ended:
		w.t.Fatalf("a reader gave up: %v", err)
	}
}

// write moves the queue to the lane.
func (w *world) write() {
	all := w.source.take()
	if !w.source.attached {
		return
	}
	for i := range all {
		w.there = all[i].appendHead(w.there)
		if all[i].kind == kindPut {
			w.there = append(w.there, all[i].entry.onLane()...)
		}
	}
	w.source.wrote(all, 0)
}

func (w *world) values(subject int) []byte {
	size := Least + 512*subject
	return bytes.Repeat([]byte{byte(subject), w.versions[subject], 7, w.versions[subject] + 1}, size/4)
}

// keysOf is what the store's end knows of requests.
func (w *world) keysOf(link, request uint64) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if link != 77 {
		return nil
	}
	return w.requests[request]
}

const (
	poolKeys = 24
	// poolWidth is the size of a value.
	poolWidth = 512
)

// ask makes a request for some keys, and the answer to it.
func (w *world) ask() (keys *ByKeys, values []byte) {
	var list []byte
	for key := range poolKeys {
		switch w.rng.IntN(6) {
		case 0:
			w.pool[key]++
			fallthrough
		case 1, 2:
			list = binary.LittleEndian.AppendUint64(list, uint64(key)<<40)
			v := make([]byte, poolWidth)
			v[0], v[poolWidth-1] = byte(key), w.pool[key]
			values = append(values, v...)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, list)
	return &ByKeys{Keys: list, Link: 77, Request: uint64(len(w.requests) - 1), Pack: packTest}, values
}

// packTest packs some values, and others not.
func packTest(values []byte) (form byte, packed []byte) {
	if len(values)%3 == 0 {
		return Plain, nil
	}
	var words keylist.WordEncoder
	packed, ok := words.Append(nil, values)
	if !ok {
		return Plain, nil
	}
	return Words, packed
}

// answerByKey sends an answer to a link's process of which parts were answered before.
func (w *world) answerByKey(l *testLink) {
	keys, v := w.ask()
	n := len(keys.Keys) / 8
	subject := Subject{App: 2, Keys: n, Bytes: len(v)}
	if n > 0 {
		subject.First = binary.LittleEndian.Uint64(keys.Keys)
	}
	m := testMessage{want: v}
	if _, ok := l.outlet.begin(subject); ok {
		if m.number, m.isRef = l.outlet.find(subject, v); !m.isRef {
			if wait, _ := l.outlet.mustWait(len(v)); wait == waitNot || wait == waitLane {
				if kind, ok := l.outlet.mayByKey(subject, keys); ok {
					var r Referred
					r, m.isRef = l.outlet.putByKey(subject, v, keys, kind, w.rng.IntN(2) == 0)
					m.number = r.Number
				}
			}
		}
	}
	l.flying = append(l.flying, m)
}

// answer sends one on a link, as it would be without a lane to wait for.
func (w *world) answer(l *testLink) {
	if w.rng.IntN(2) == 0 {
		w.answerByKey(l)
		return
	}
	i := w.rng.IntN(testSizes)
	if w.rng.IntN(6) == 0 {
		w.versions[i]++
	}
	v := w.values(i)
	subject := Subject{App: 1, First: uint64(i), Last: uint64(i), Keys: 1, Bytes: len(v)}
	m := testMessage{want: v}
	if mayPut, ok := l.outlet.begin(subject); ok {
		if m.number, m.isRef = l.outlet.find(subject, v); !m.isRef && (mayPut || l.outlet.try(subject, false) || w.rng.IntN(2) == 0) {
			if wait, _ := l.outlet.mustWait(len(v)); wait == waitNot || wait == waitLane {
				m.number, _, m.isRef = l.outlet.put(subject, v, Plain, nil, nil, true)
			}
		}
	}
	l.flying = append(l.flying, m)
}

// use lets a link's process read a little.
func (w *world) use(l *testLink) {
	if l.using != nil {
		if !bytes.Equal(l.holds, l.using.want) {
			w.t.Fatalf("link %d: values changed while they were in use", l.number)
		}
		w.store.used(l.number, l.using.number)
		l.using = nil
		return
	}
	if len(l.flying) == 0 {
		return
	}
	m := l.flying[0]
	if m.isRef {
		w.store.bind(l.number) // the first one names the group
		values, _, _, err := w.store.take(m.number)
		if err != nil {
			w.t.Fatalf("link %d, number %d: %v", l.number, m.number, err)
		}
		if values == nil {
			return // it waits
		}
		if !bytes.Equal(values, m.want) {
			w.t.Fatalf("link %d, number %d: other values", l.number, m.number)
		}
		w.resolved++
		l.using, l.holds = &m, values
	}
	l.flying = l.flying[1:]
}

// leave ends a link at its receiver, whatever is on its way. Its sender may notice later, and
// go on meanwhile.
func (w *world) leave(i int) {
	l := w.links[i]
	if l.using != nil {
		w.use(l)
	}
	switch {
	case l.ended:
	case w.rng.IntN(2) == 0:
		w.late = append(w.late, l)
	default:
		l.outlet.Close()
	}
	w.store.leave(l.number)
	w.links = append(w.links[:i], w.links[i+1:]...)
}

// notice has the sender of a link notice that it has ended, or answer once more.
func (w *world) notice() {
	if len(w.late) == 0 {
		return
	}
	if w.rng.IntN(3) > 0 {
		w.answer(w.late[0])
		return
	}
	w.late[0].outlet.Close()
	w.late = w.late[1:]
}

func (w *world) step() {
	l := w.links[w.rng.IntN(len(w.links))]
	switch w.rng.IntN(16) {
	case 0, 1, 2, 3:
		if !l.ended && len(l.flying) < 20 {
			w.answer(l)
		}
	case 4, 5:
		w.write()
	case 6, 7:
		w.carry(&w.there, w.reader, w.ended, w.rng.IntN(3*Least))
	case 8:
		w.back = w.store.appendNews(w.back)
	case 9:
		w.carry(&w.back, w.told, w.heard, 1+w.rng.IntN(30))
	case 10, 11, 12, 13:
		if !l.stalled {
			w.use(l)
		}
	case 14:
		l.stalled = w.rng.IntN(3) == 0
		w.notice()
	case 15:
		switch w.rng.IntN(12) {
		case 0:
			w.cut()
		case 1: // in order: the receiver still uses what comes
			l.outlet.Close()
			l.ended = true
		case 2:
			w.leave(w.rng.IntN(len(w.links)))
			w.link()
		case 3:
			w.store.grow(w.store.limit + Least)
		}
	}
	w.check()
}

func (w *world) check() {
	s := 0
	for _, e := range w.source.entries {
		s += e.size()
	}
	tables := 0
	for _, k := range w.source.tables {
		if k.valid {
			tables += k.size()
		}
	}
	if tables != w.source.tableBytes || s+tables != w.source.bytes || s > w.source.limit || w.source.limit > w.store.limit {
		w.t.Fatalf("the source has %d bytes and %d of tables, counted %d of %d, granted %d", s, tables, w.source.bytes, w.source.limit, w.store.limit)
	}
	r := storedBytes(w.store)
	// What is above is tables, of which only the lane's reader knows.
	if r > w.store.bytes || w.store.bytes > w.store.limit || r+maxTables*w.store.limit/tablesOf < w.store.bytes {
		w.t.Fatalf("the store has %d bytes, counted %d of %d", r, w.store.bytes, w.store.limit)
	}
}

// settle lets everything that is on its way arrive.
func (w *world) settle() {
	for len(w.late) > 0 {
		w.notice()
	}
	for range 10_000 {
		w.write()
		w.carry(&w.there, w.reader, w.ended, 1<<20)
		waits := false
		for _, l := range w.links {
			w.use(l)
			waits = waits || len(l.flying) > 0 || l.using != nil
		}
		w.back = w.store.appendNews(w.back)
		w.carry(&w.back, w.told, w.heard, 1<<20)
		w.check()
		if !waits && len(w.there) == 0 && len(w.source.queue) == 0 {
			return
		}
	}
	for _, l := range w.links {
		if len(l.flying) > 0 {
			w.t.Errorf("link %d waits for %+v; next %d", l.number, l.flying[0].number, w.store.next)
		}
	}
	w.t.Fatal("something never arrives")
}

// Whatever is cut, stalls or ends, in any order: each process gets the very values that
// its server answered, neither end keeps more than was agreed, and at the end nothing
// waits and nothing is owed.
func TestSchedules(t *testing.T) {
	resolved, byKey, spared := 0, uint64(0), uint64(0)
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range 600 {
				w.step()
			}
			for _, l := range w.links {
				l.stalled = false
			}
			w.settle()
			for n, e := range w.source.entries {
				if e.refs > 0 {
					t.Errorf("number %d has %d references that nobody has", n, e.refs)
				}
				if w.store.entries[n] == nil {
					t.Errorf("number %d is not at the other end", n)
				}
			}
			for len(w.links) > 0 {
				w.leave(0)
			}
			w.settle()
			if len(w.source.outlets) > 0 {
				t.Errorf("%d links are not forgotten", len(w.source.outlets))
			}
			close(w.reader.in)
			close(w.told.in)
			<-w.ended
			<-w.heard
			resolved += w.resolved
			c := w.source.Counts()
			byKey, spared = byKey+c.ByKey, spared+c.SparedBytes
			if sum := storedBytes(w.store); sum != w.store.bytes {
				t.Errorf("%d bytes are kept without a lane, counted %d", sum, w.store.bytes)
			}
		})
	}
	if resolved < 300*20 {
		t.Errorf("only %d references were resolved", resolved)
	}
	if byKey < 300*5 {
		t.Errorf("only %d answers went by key", byKey)
	}
	t.Logf("%d references, %d by key, %d bytes spared", resolved, byKey, spared)
}

func storedBytes(s *Store) (sum int) {
	for _, h := range s.entries {
		sum += len(h.values)
	}
	return sum
}
