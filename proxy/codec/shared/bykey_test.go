package shared

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
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

// An answer whose table is lost with its lane while it is encoded is not put: the next lane's end has
// another table.
func TestTableLostMeanwhile(t *testing.T) {
	s := NewSource(1<<20, nil)
	if err := s.start(0, 1<<20); err != nil {
		t.Fatal(err)
	}
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
