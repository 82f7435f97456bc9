package bpf

import (
	"bytes"
	"errors"
	"testing"
)

// batchOf writes a batch as the kernel does.
func batchOf(stream StreamID, sequence uint32, message uint64, records ...Record) []byte {
	b := make([]byte, batchSize)
	native.PutUint64(b[0:], uint64(stream))
	native.PutUint64(b[16:], message)
	native.PutUint32(b[24:], sequence)
	for _, r := range records {
		e := make([]byte, recordSize+(len(r.Data)+7)&^7)
		e[0], e[1], e[2] = byte(r.Kind), byte(r.Flags), r.Frame
		native.PutUint16(e[4:], uint16(len(r.Data)))
		native.PutUint16(e[6:], uint16(r.Message-message))
		native.PutUint64(e[8:], r.Offset)
		native.PutUint64(e[16:], r.Length)
		copy(e[recordSize:], r.Data)
		b = append(b, e...)
	}
	native.PutUint32(b[28:], uint32(len(b)))
	return b
}

func TestUnpackTellsLostBatches(t *testing.T) {
	c := &Capture{batches: map[StreamID]uint32{}}
	id := NewStreamID(7, Ingress)
	meta := Record{Kind: KindMeta, Flags: EndsFrame | EndsMessage, Message: 12, Length: 3, Data: []byte("abc")}
	var got []Record
	for _, b := range [][]byte{batchOf(id, 0, 10), batchOf(id, 3, 11, meta), batchOf(id, 4, 13, Record{Kind: KindForeign, Message: 13})} {
		if err := c.unpack(b, func(r *Record) {
			r.Data = bytes.Clone(r.Data)
			got = append(got, *r)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 3 || got[0].Kind != KindLost || got[0].Length != 2 || got[0].Message != 11 {
		t.Fatalf("records %+v", got)
	}
	if m := got[1]; m.Stream != id || m.Stream.Direction() != Ingress || m.Message != 12 || string(m.Data) != "abc" || !m.Has(EndsMessage) {
		t.Errorf("meta %+v", m)
	}
	if len(c.batches) != 0 {
		t.Errorf("a foreign stream is remembered: %v", c.batches)
	}
}

func FuzzUnpack(f *testing.F) {
	id := NewStreamID(7, Egress)
	f.Add(batchOf(id, 1, 5, Record{Kind: KindKeys, Frame: 1, Message: 5, Offset: 8, Length: 64, Data: make([]byte, 20)}))
	f.Add(batchOf(id, 0, 0, Record{Kind: KindOpen, Data: make([]byte, endpointsSize)}, Record{Kind: KindEnd, Data: make([]byte, 32)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Capture{batches: map[StreamID]uint32{}}
		used := 0
		err := c.unpack(b, func(r *Record) {
			used += len(r.Data)
			_, _ = r.Endpoints()
			_ = r.FrameBytes()
			_ = r.Kind.String()
		})
		if used > len(b) {
			t.Errorf("%d bytes of data in a batch of %d", used, len(b))
		}
		if err != nil && !errors.Is(err, errMalformed) {
			t.Error(err)
		}
	})
}
