package shared

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/psidecar/psidecar/test/require"
)

var fuzzKeys = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(make([]byte, 8), 7), 7<<40)

// Whatever comes over a lane, a store keeps to its bound and fails with an error.
func FuzzStore(f *testing.F) {
	s := NewSource(1<<20, nil)
	require.NoError(f, s.start(0, 1<<20))
	o := s.Join(1, netip.AddrPort{})
	for n, v := range model(1, 3, 40) {
		o.put(Subject{First: uint64(n)}, v, Plain, nil, nil, true)
	}
	o.put(Subject{First: 9}, make([]byte, 64), Words, []byte{1, 2, 3}, nil, true)
	for step := range byte(4) {
		subject, values := Subject{Keys: 3, Bytes: 24}, bytes.Repeat([]byte{1, 2, step / 2, 4}, 6)
		keys := &ByKeys{Keys: fuzzKeys, Link: 1, Request: uint64(step), Pack: asTheyAre}
		kind, ok := o.mayByKey(subject, keys)
		if !ok {
			f.Fatal("not by key")
		}
		if _, ok := o.putByKey(subject, values, keys, kind, false); !ok {
			f.Fatal("not put by key")
		}
	}
	var wire []byte
	for _, fr := range s.take() {
		wire = fr.appendHead(wire)
		if fr.kind == kindPut {
			wire = append(wire, fr.entry.onLane()...)
		}
	}
	f.Add(wire)
	f.Add([]byte{kindKeep, 2, 0, 1, kindDrop, 0, kindWant, 200, 200, 3})
	f.Fuzz(func(t *testing.T, wire []byte) {
		const most = 64 << 10
		s := NewStore(most, nil)
		s.grow(most / 2)
		sum := 0
		// At the lane's end its tables go.
		err := s.read(bufio.NewReader(bytes.NewReader(wire)), func(uint64, uint64) []byte { return fuzzKeys })
		for n, h := range s.entries {
			sum += len(h.values)
			if n >= s.next {
				t.Errorf("number %d is kept, %d comes next", n, s.next)
			}
		}
		if sum != s.bytes || sum > s.limit || s.limit > most {
			t.Errorf("%d bytes are kept, counted %d of %d; %v", sum, s.bytes, s.limit, err)
		}
	})
}

// Whatever comes back, a source counts no reference twice and keeps to its bound.
func FuzzSource(f *testing.F) {
	f.Add([]byte{kindStart, 0, 128, 128, 8, kindUsed, 1, 1, kindGone, 1, kindLimit, 255, 1})
	f.Add([]byte{kindUsed, 1, 9})
	f.Fuzz(func(t *testing.T, wire []byte) {
		s := NewSource(64<<10, nil)
		require.NoError(t, s.start(0, 32<<10))
		o := s.Join(1, netip.AddrPort{})
		for n, v := range model(1, 3, 40) {
			o.put(Subject{First: uint64(n)}, v, Plain, nil, nil, true)
		}
		_ = s.read(bufio.NewReader(bytes.NewReader(wire)))
		refs := 0
		for _, e := range s.entries {
			if e.refs < 0 {
				t.Errorf("%d references", e.refs)
			}
			refs += e.refs
		}
		if refs != len(o.refs) || s.limit > 64<<10 || s.bytes > s.limit {
			t.Errorf("%d references of %d, %d bytes of %d", refs, len(o.refs), s.bytes, s.limit)
		}
	})
}
