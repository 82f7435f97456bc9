package shared

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// proxies are two whose lanes are TCP connections on loopback.
type proxies struct {
	t      *testing.T
	group  *Group
	stores *Stores
	life   context.Context
	serves sync.WaitGroup
	from   Peer

	mu    sync.Mutex // guards the rest
	lanes []net.Conn
	away  bool // lanes are refused
	asked requests
	made  int
}

func newProxies(t *testing.T, most int) *proxies {
	t.Helper()
	p := &proxies{t: t, stores: NewStores(), from: Peer{1}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	life, end := context.WithCancel(context.Background())
	p.life = life
	p.group = require.Value(NewGroup(most, nil, func(ctx context.Context, id ID) (net.Conn, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.away {
			return nil, errors.New("refused")
		}
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		far, err := l.Accept()
		if err != nil {
			return nil, err
		}
		p.lanes = append(p.lanes, far)
		p.made++
		p.serves.Go(func() {
			if err := p.stores.Serve(life, id, p.from, far, most, nil, p.asked.keysOf); err != nil && life.Err() == nil && errors.Is(err, ErrCorrupt) {
				t.Errorf("a lane ended: %v", err)
			}
		})
		return conn, nil
	}))(t)
	t.Cleanup(func() {
		p.group.Close()
		p.group.over.Wait()
		end()
		p.serves.Wait()
		l.Close()
	})
	return p
}

// cut breaks the lane; with away it is not made again before back is called.
func (p *proxies) cut(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
	for _, c := range p.lanes {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	p.lanes = nil
}

func (p *proxies) back() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = false
}

// pair is a link between them: what its sender says comes out in order.
type pair struct {
	out  *Outlet
	in   *Inlet
	says chan testMessage
}

func (p *proxies) link(number uint64, alive func() bool) *pair {
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 2}), uint16(number))
	return &pair{out: p.group.Join(number, to), in: p.stores.Open(p.from, number, alive), says: make(chan testMessage, 1<<12)}
}

func (l *pair) close() {
	l.out.Close()
	l.in.Close()
}

func asTheyAre([]byte) (byte, []byte) { return Plain, nil }

// answer sends values of a subject.
func (l *pair) answer(first uint64, values []byte) (r Referred, ok bool) {
	r, ok = l.out.Refer(Subject{First: first, Last: first, Keys: 1, Bytes: len(values)}, values, asTheyAre, nil)
	l.says <- testMessage{isRef: ok, number: r.Number, want: values}
	return r, ok
}

// hear takes the next message as its process does, and reports whether it was right.
func (l *pair) hear(id ID, begun *bool) error {
	m, more := <-l.says
	if !more || !m.isRef {
		return nil
	}
	if !*begun {
		*begun = true
		if err := l.in.Begin(id); err != nil {
			return err
		}
	}
	values, err := l.in.Take(m.number)
	if err != nil {
		return err
	}
	if !bytes.Equal(values, m.want) {
		return errors.New("other values")
	}
	l.in.Release()
	return nil
}

func alive() bool { return true }

// expects waits until there is a lane.
func (p *proxies) expects(t *testing.T) {
	t.Helper()
	p.group.Expect(true)
	require.Eventually(t, "a lane is made", func() bool {
		p.group.mu.Lock()
		defer p.group.mu.Unlock()
		return p.group.attached
	})
}

// Four links pull a model at once, again and again, while the lane breaks: each gets the
// very values, and but for what breaks took they cross once.
func TestLinksShareWhileTheLaneBreaks(t *testing.T) {
	const links, steps, keys, size = 4, 30, 20, 40_000
	p := newProxies(t, 8<<20)
	var all []*pair
	for n := range links {
		all = append(all, p.link(uint64(n), alive))
	}
	p.expects(t)
	for step := range uint64(steps) {
		p.expects(t)
		values := model(step, keys, size)
		var g sync.WaitGroup
		for _, l := range all {
			g.Go(func() {
				for k, v := range values {
					l.answer(uint64(k), v)
				}
			})
			g.Go(func() {
				begun := l.in.group != nil
				for range keys {
					if err := l.hear(p.group.ID, &begun); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if step%4 == 3 {
			p.cut(false)
		}
		g.Wait()
	}
	for _, l := range all {
		l.close()
	}
	c := p.group.Counts()
	if whole := uint64(links * steps * keys * size); c.SparedBytes < whole/4 || c.SparedBytes > whole*(links-1)/links {
		t.Errorf("of %d bytes %+v", whole, c)
	}
	if p.made < steps/8 {
		t.Errorf("only %d lanes were made", p.made)
	}
	t.Logf("%d lanes, %+v", p.made, c)
}

// A process that does not read keeps no other waiting, nor the lane: a part of what it
// is sent is kept, then its own link waits for it.
func TestOneThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	const keys, size, steps = 64, 256 << 10, 6 // 16 MiB a step, of 32
	p := newProxies(t, 32<<20)
	reads, stalled := p.link(1, alive), p.link(2, alive)
	defer reads.close()
	defer stalled.close()
	p.expects(t)
	first := make(chan bool, 1)
	var g sync.WaitGroup
	g.Go(func() {
		for step := range uint64(steps) {
			for k, v := range model(step, keys, size) {
				stalled.answer(uint64(k), v)
			}
			if step == 0 {
				first <- true
			}
		}
	})
	begun := false
	for step := range uint64(steps) {
		for k, v := range model(step, keys, size) {
			reads.answer(uint64(k), v)
			require.NoError(t, reads.hear(p.group.ID, &begun))
		}
	}
	<-first // all but so much of it waits
	p.group.mu.Lock()
	pending, all := stalled.out.pending, steps*keys*size
	p.group.mu.Unlock()
	if pending > 16<<20 || len(stalled.says)*size > all/2 {
		t.Errorf("%d bytes are kept for a process that does not read, which was sent %d of %d answers", pending, len(stalled.says), steps*keys)
	}
	begun = false
	for range steps * keys { // and it reads it all at last
		require.NoError(t, stalled.hear(p.group.ID, &begun))
	}
	g.Wait()
}

// What a lane that is lost was to bring is lost with the link, at once where that has
// ended too, or is reset.
func TestLostLaneIsLostWithTheLink(t *testing.T) {
	p := newProxies(t, 8<<20)
	var dead sync.Map
	whole := p.link(1, alive)
	ended := p.link(2, func() bool { _, is := dead.Load(2); return !is })
	defer whole.close()
	defer ended.close()
	p.expects(t)
	v := model(1, 1, 100_000)[0]
	for _, l := range []*pair{whole, ended} {
		l.answer(1, v)
		begun := false
		require.NoError(t, l.hear(p.group.ID, &begun))
	}
	p.cut(true)
	dead.Store(2, true)
	if _, err := ended.in.Take(1 << 20); !errors.Is(err, ErrLost) {
		t.Errorf("the link has ended: %v", err)
	}
	failed := make(chan error)
	go func() {
		_, err := whole.in.Take(1 << 20)
		failed <- err
	}()
	whole.in.Abort()
	if err := <-failed; !errors.Is(err, ErrLost) {
		t.Errorf("the link was reset: %v", err)
	}
	p.back()
}

// A link that ends before its first reference has arrived, so that the other end does not know
// of which group it was, leaves nothing behind.
func TestALinkThatEndsUnreadKeepsNothing(t *testing.T) {
	p := newProxies(t, 8<<20)
	whole, ends := p.link(1, alive), p.link(2, alive)
	defer whole.close()
	p.expects(t)
	if _, ok := ends.answer(1, model(1, 1, 100_000)[0]); !ok {
		t.Fatal("the answer is not shared")
	}
	ends.close()
	require.Await(t, "nothing of the link that has ended is kept", func() error {
		p.group.mu.Lock()
		defer p.group.mu.Unlock()
		refs, outlets := 0, len(p.group.outlets)
		for _, e := range p.group.entries {
			refs += e.refs
		}
		if refs > 0 || outlets != 1 {
			return fmt.Errorf("%d references are, and %d links", refs, outlets)
		}
		return nil
	})
}

// A number means something in its own group alone, to links of its own proxy.
func TestGroupsAreApart(t *testing.T) {
	p := newProxies(t, 8<<20)
	a, b := p.link(1, alive), p.link(2, alive)
	defer a.close()
	defer b.close()
	p.expects(t)
	if _, ok := a.answer(1, model(1, 1, 100_000)[0]); !ok {
		t.Fatal("not shared")
	}
	stranger := p.stores.Open(Peer{2}, 1, alive)
	defer stranger.Close()
	if err := stranger.Begin(p.group.ID); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another proxy's link refers to the group: %v", err)
	}
	if err := b.in.Begin(ID{7}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a group that nobody has: %v", err)
	}
	if _, err := b.in.Take(0); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a number of no group: %v", err)
	}
	there, here := net.Pipe()
	defer there.Close()
	if err := p.stores.Serve(t.Context(), p.group.ID, Peer{2}, here, 1<<20, nil, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another proxy's lane takes the group over: %v", err)
	}
	if err := p.stores.Serve(t.Context(), ID{9}, Peer{3}, here, 1<<20, nil, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a lane of a proxy without links: %v", err)
	}
}

// Values that are larger than what is granted to begin with wait until it is more, and
// go as they are where it will not be.
func TestMoreIsGrantedForLargeValues(t *testing.T) {
	p := newProxies(t, 64<<20)
	a, b := p.link(1, alive), p.link(2, alive)
	defer a.close()
	defer b.close()
	p.expects(t)
	begun := [2]bool{}
	for n, size := range []int{20 << 20, 30 << 20, 40 << 20} {
		v := make([]byte, size)
		v[n] = 1
		for i, l := range []*pair{a, b} {
			if _, ok := l.answer(uint64(n), v); ok != (size <= 32<<20) {
				t.Errorf("%d bytes of 64 MiB: shared %v", size, ok)
			}
			require.NoError(t, l.hear(p.group.ID, &begun[i]))
		}
	}
	if c := p.group.Counts(); c.Sent != 2 || c.Referred != 2 || c.Plain[TooLarge] != 2 || len(c.Plain) != 1 {
		t.Errorf("%+v", c)
	}
}

// bounds is memory that can be full.
type bounds struct {
	mu   sync.Mutex
	left int
}

func (b *bounds) TryReserve(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *bounds) Unreserve(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// A store takes what memory there is, and gives it back.
func TestMemoryIsGivenBack(t *testing.T) {
	const all = 3 << 20
	b := &bounds{left: all}
	s := NewStore(8<<20, b)
	s.grow(firstLimit)
	if s.limit < all/2 || s.limit > all || b.left != all-s.limit {
		t.Errorf("%d bytes of %d are granted, %d left", s.limit, all, b.left)
	}
	s.close()
	source := NewSource(8<<20, b)
	if err := source.start(0, all); err != nil || source.limit != all {
		t.Errorf("%d bytes, %v", source.limit, err)
	}
	source.close()
	if b.left != all {
		t.Errorf("%d bytes of %d are back", b.left, all)
	}
}

// Values that never come again are kept for fewer and fewer answers.
func TestUnlikeValuesAreLeftAlone(t *testing.T) {
	p := newProxies(t, 64<<20)
	a, b := p.link(1, alive), p.link(2, alive)
	defer a.close()
	defer b.close()
	p.expects(t)
	const answers = 2000
	begun := [2]bool{}
	for n := range uint64(answers) {
		for i, l := range []*pair{a, b} {
			l.answer(1, model(n*2+uint64(i), 1, 8192)[0])
			require.NoError(t, l.hear(p.group.ID, &begun[i]))
		}
	}
	c := p.group.Counts()
	if c.Sent > 2*answers/20 || c.Referred > 0 || c.Plain[Seldom] < answers {
		t.Errorf("of %d answers that are all different: %+v", 2*answers, c)
	}
}

// A lane that is reset, as one is that its other end closes with something unread, has
// ended like any other; one with rubbish in it is an error.
func TestLaneThatIsReset(t *testing.T) {
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{"reset": {nil, nil}, "rubbish": {[]byte{99, 0}, ErrCorrupt}} {
		t.Run(name, func(t *testing.T) {
			l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer l.Close()
			other := require.Value(net.Dial("tcp", l.Addr().String()))(t)
			lane := require.Value(l.Accept())(t)
			stores, from := NewStores(), Peer{1}
			stores.Open(from, 1, func() bool { return true })
			served := make(chan error)
			go func() { served <- stores.Serve(t.Context(), ID{1}, from, lane, 1<<20, nil, nil) }()
			if _, err := other.Read(make([]byte, 1)); err != nil { // the lane has begun
				t.Fatal(err)
			}
			require.Value(other.Write(c.bytes))(t)
			if c.bytes == nil {
				require.NoError(t, other.(*net.TCPConn).SetLinger(0))
				other.Close()
			} else {
				defer other.Close()
			}
			if err := <-served; !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("a lane with %s ends with %v, want %v", name, err, c.want)
			}
		})
	}
}
