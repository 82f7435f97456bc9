package shared

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// model is what a server answers in a step, of random numbers.
func model(step uint64, keys, size int) (all [][]byte) {
	rng := rand.NewPCG(step, 9)
	for range keys {
		b := make([]byte, 0, size+8)
		for len(b) < size {
			b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
		}
		all = append(all, b[:size])
	}
	return all
}

// requests are what a worker's proxy keeps of its requests.
type requests struct {
	mu   sync.Mutex
	keys map[[2]uint64][]byte // by link and request
}

func (r *requests) keysOf(link, request uint64) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[[2]uint64{link, request}]
}

// keep keeps the keys of a request, until its answer has arrived.
func (r *requests) keep(link, request uint64, keys []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == nil {
		r.keys = map[[2]uint64][]byte{}
	}
	r.keys[[2]uint64{link, request}] = keys
}

// Links whose lists of keys are never the same are answered at once, while the lane breaks: each
// gets the very values, of which those that others have got cross once.
func TestKeysAreSharedWhileTheLaneBreaks(t *testing.T) {
	const links, steps, all, width = 4, 40, 3000, 4
	p := newProxies(t, 8<<20)
	var to []*pair
	for n := range links {
		to = append(to, p.link(uint64(n), alive))
	}
	p.expects(t)
	bytes := 0
	for step := range uint64(steps) {
		p.expects(t)
		values := model(step, 1, all*width)[0]
		var g sync.WaitGroup
		for n, l := range to {
			rng := rand.New(rand.NewPCG(step, uint64(n)))
			var keys, of []byte
			for key := range all {
				if rng.IntN(2) == 0 {
					keys = binary.LittleEndian.AppendUint64(keys, uint64(key)<<30)
					of = append(of, values[key*width:(key+1)*width]...)
				}
			}
			bytes += len(of)
			g.Go(func() {
				p.asked.keep(uint64(n), step, keys)
				subject := Subject{Keys: len(keys) / 8, Bytes: len(of), Last: step*links + uint64(n)}
				r, ok := l.out.Refer(subject, of, asTheyAre, &ByKeys{Keys: keys, Link: uint64(n), Request: step, Pack: asTheyAre})
				l.says <- testMessage{isRef: ok, number: r.Number, want: of}
			})
			g.Go(func() {
				begun := l.in.group != nil
				if err := l.hear(p.group.ID, &begun); err != nil {
					t.Error(err)
				}
			})
		}
		if step%8 == 7 {
			p.cut(false)
		}
		g.Wait()
	}
	for _, l := range to {
		l.close()
	}
	c := p.group.Counts()
	// Half of the keys are pulled by each of four, so 15 values of 32 cross: but for the first of
	// each table, and what the lanes' ends took.
	if c.ByKey < links*steps/2 || c.SparedBytes < uint64(bytes)/4 || c.SparedBytes > uint64(bytes)*18/32 {
		t.Errorf("of %d bytes %+v", bytes, c)
	}
	if p.made < steps/16 {
		t.Errorf("only %d lanes were made", p.made)
	}
	t.Logf("%d lanes, %d bytes, %+v", p.made, bytes, c)
}

// Of each answer so few values are known that the bits which say so take more than these spare.
func TestFewKeysAreSpared(t *testing.T) {
	const steps, all, width = 20, 3000, 4
	for _, same := range []int{1, all / 64, all/32 - 1, all / 32, all/32 + 1} {
		p := newProxies(t, 8<<20)
		l, other, begun := p.link(1, alive), p.link(2, alive), false // a lane is for several
		p.expects(t)
		var keys []byte
		for key := range all {
			keys = binary.LittleEndian.AppendUint64(keys, uint64(key)<<30)
		}
		referred := 0
		for step := range uint64(steps) {
			values := model(step+1, 1, all*width)[0]
			copy(values, model(0, 1, same*width)[0][:same*width])
			p.asked.keep(1, step, keys)
			r, ok := l.out.Refer(Subject{Keys: all, Bytes: len(values), Last: step}, values, asTheyAre, &ByKeys{Keys: keys, Link: 1, Request: step, Pack: asTheyAre})
			if ok {
				referred++
			}
			l.says <- testMessage{isRef: ok, number: r.Number, want: values}
			if err := l.hear(p.group.ID, &begun); err != nil {
				t.Fatalf("%d of %d values known, step %d: %v", same, all, step, err)
			}
		}
		l.close()
		other.close()
		if c := p.group.Counts(); referred < steps/2 || p.made != 1 {
			t.Errorf("%d of %d values known: %d of %d answers went by the lane, of which %d were made; %+v", same, all, referred, steps, p.made, c)
		}
	}
}

// An answer whose table is lost with its lane while it is encoded is not put: the next lane's end has
// another table.
func TestTableLostMeanwhile(t *testing.T) {
	s := NewSource(1<<20, nil)
	require.NoError(t, s.start(0, 1<<20))
	o := s.Join(1, netip.AddrPort{})
	subject, values := Subject{Keys: 3, Bytes: 24}, make([]byte, 24)
	keys := &ByKeys{Keys: fuzzKeys, Link: 1, Request: 1, Pack: func([]byte) (byte, []byte) {
		s.detach()
		if err := s.start(0, 1<<20); err != nil {
			t.Error(err)
		}
		return Plain, nil
	}}
	kind, ok := o.mayByKey(subject, keys)
	if !ok {
		t.Fatal("not by key")
	}
	if _, ok := o.putByKey(subject, values, keys, kind, false); ok || s.bytes != 0 || len(s.entries) != 0 {
		t.Errorf("put: %v; %d bytes, %d entries", ok, s.bytes, len(s.entries))
	}
	keys.Pack = asTheyAre
	if _, ok := o.putByKey(subject, values, keys, kind, false); !ok || s.tableBytes == 0 || s.bytes <= s.tableBytes {
		t.Errorf("put then: %v; %d bytes, of tables %d", ok, s.bytes, s.tableBytes)
	}
}

// Answers go by key while that spares the link more time than it takes, and an eighth of the bytes.
func TestWhatByKeyIsWorth(t *testing.T) {
	const keys, width, round = 1000, 4, 32
	for name, c := range map[string]struct {
		spared  float64 // part of the bytes
		perKey  time.Duration
		perByte float64
		pauses  bool
	}{
		"half, 100 Mbit/s":               {0.5, 40, 80, false},
		"half, 1 Gbit/s":                 {0.5, 40, 8, true},
		"half, in the twinkling, 1 Gbit": {0.5, 5, 8, false},
		"half, of an unknown link":       {0.5, 4000, 0, false},
		"a tenth, 10 Mbit/s":             {0.1, 40, 800, true},
		"a fifth, 10 Mbit/s":             {0.2, 40, 800, false},
	} {
		t.Run(name, func(t *testing.T) {
			var w worth
			byKey := 0
			for i := range 40 * round {
				if !w.may() {
					continue
				}
				byKey++
				took := c.perKey * keys
				if i%3 == 0 {
					took += 5 * time.Millisecond // it waits for a processor
				}
				w.learn(byKeyAnswer{keys: keys, newKeys: keys / 20, bytes: keys * width, spared: int(c.spared * keys * width), took: took}, round, c.perByte)
			}
			if byKey == 40*round == c.pauses {
				t.Errorf("%d of %d answers go by key", byKey, 40*round)
			}
			if c.pauses && byKey > 40*round/2 {
				t.Errorf("%d of %d answers go by key where it does not pay", byKey, 40*round)
			}
		})
	}
}

// A table is enlarged as long as that spares more, and shrinks by a step once it does not.
func TestTablesGrowWhileItHelps(t *testing.T) {
	const round = 32
	var w worth
	for range 60 * round {
		if !w.may() {
			continue
		}
		spared := []int{0, 100, 1000, 2000}[min(w.scale, 3)] // of 4000
		w.learn(byKeyAnswer{keys: 1000, newKeys: 500, bytes: 4000, spared: spared, took: 1000}, round, 0)
	}
	if w.scale != 3 || !w.full {
		t.Errorf("%+v", w)
	}
}
