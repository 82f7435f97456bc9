// Package replay makes of a traffic recording (pcap, pcapng) the records that
// a live capture of the same traffic would have yielded, so that both run
// through the same observer.
//
// In comes a file as tcpdump writes it; out come [bpf.Record]s, with times in
// nanoseconds since 1970. Tests call it.
// Directions whose beginning was not recorded are left out and counted.
package replay

import (
	"encoding/binary"
	"io"
	"net/netip"
	"time"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

// Totals says what of a recording was left out.
type Totals struct {
	Late    int    // directions whose beginning was not recorded
	Foreign int    // directions that are not ZMTP
	Missing uint64 // bytes that the recording lost
}

// Read hands the records of a recording to each, which must not keep them.
func Read(r io.Reader, each func(*bpf.Record)) (Totals, error) {
	p := &player{each: each}
	a := capture.NewAssembler(p.open)
	_, err := capture.Segments(r, func(s *capture.Segment) error {
		a.Add(s)
		return nil
	})
	a.Close()
	p.totals.Missing = a.Missing
	return p.totals, err
}

type player struct {
	each   func(*bpf.Record)
	count  uint64
	totals Totals
}

func (p *player) open(f capture.Flow, late bool) capture.Sink {
	p.count++
	d := &direction{player: p, flow: f, dead: late, dec: zmtp.NewDecoder(zmtp.Limits{Frames: 5, CommandSize: 64 << 10})}
	d.record.Stream = bpf.NewStreamID(p.count, bpf.Egress)
	if late {
		p.totals.Late++
	}
	return d
}

// A direction turns the bytes of one direction of a connection into records.
type direction struct {
	player *player
	flow   capture.Flow
	dec    *zmtp.Decoder
	record bpf.Record
	opened bool
	dead   bool // not ZMTP, or cut into

	frame   int
	header  zmtp.Header
	offset  uint64 // of the next byte of the frame's body
	gather  zmtp.Gather
	lengths [4]uint64
	size    uint64 // of the message, with headers
}

// Bytes implements capture.Sink.
func (d *direction) Bytes(t time.Time, b []byte) {
	d.record.Time = uint64(t.UnixNano())
	for !d.dead {
		ev, rest, err := d.dec.Next(b)
		if err != nil {
			d.die()
			return
		}
		b = rest
		switch ev.Kind {
		case zmtp.NeedMore:
			d.gather.Keep()
			return
		case zmtp.GreetingDone:
			d.emit(bpf.KindOpen, 0, 0, 0, endpoints(d.flow.Src, d.flow.Dst))
			d.opened = true
		case zmtp.FrameStart:
			d.start(ev.Header)
		case zmtp.FrameBody:
			d.body(ev.Body)
		case zmtp.FrameEnd:
			d.end()
		}
	}
}

func (d *direction) die() {
	d.dead = true
	if d.opened {
		d.emit(bpf.KindForeign, 0, 0, 0, nil)
	} else {
		d.player.totals.Foreign++
	}
}

func (d *direction) start(h zmtp.Header) {
	d.header, d.offset = h, 0
	d.gather.Start()
	if !h.Command() {
		d.lengths[d.frame] = h.Size
		d.size += uint64(h.Len()) + h.Size
	}
}

// whole reports whether the frame is handed over in one record.
func (d *direction) whole() bool { return d.header.Command() || d.frame == 0 }

func (d *direction) body(b []byte) {
	switch {
	case d.whole():
		d.gather.Add(b)
	case d.frame == 1:
		d.emit(bpf.KindKeys, 0, d.offset, d.header.Size, b)
	case d.frame == 3:
		d.emit(bpf.KindLens, 0, d.offset, d.header.Size, b)
	}
	d.offset += uint64(len(b))
}

func (d *direction) end() {
	if d.header.Command() {
		d.emit(bpf.KindCommand, bpf.EndsFrame, 0, d.header.Size, d.gather.Bytes())
		return
	}
	if d.frame == 0 && d.header.More() {
		if _, ok := pslite.ParseIdentity(d.gather.Bytes()); ok {
			return // BytePS: the asker's identity before an answer, stepped over
		}
	}
	if d.frame == 0 {
		flags := bpf.EndsFrame | bpf.Sampled
		if !d.header.More() {
			flags |= bpf.EndsMessage
		}
		d.emit(bpf.KindMeta, flags, 0, d.header.Size, d.gather.Bytes())
	}
	d.frame++
	if d.header.More() {
		return
	}
	if d.frame > 1 {
		var data [32]byte
		for i, n := range d.lengths {
			binary.LittleEndian.PutUint64(data[8*i:], n)
		}
		d.emit(bpf.KindEnd, bpf.Sampled|bpf.EndsMessage, d.size, d.header.Size, data[:])
	}
	d.record.Message++
	d.frame, d.size, d.lengths = 0, 0, [4]uint64{}
}

func (d *direction) emit(k bpf.Kind, flags bpf.Flags, offset, length uint64, data []byte) {
	r := &d.record
	r.Kind, r.Flags, r.Frame, r.Offset, r.Length, r.Data = k, flags, uint8(d.frame), offset, length, data
	d.player.each(r)
}

// Gap implements capture.Sink.
func (d *direction) Gap(time.Time, uint64) {
	if !d.dead {
		d.die()
	}
}

// End implements capture.Sink.
func (d *direction) End() {
	if !d.dead && d.opened {
		d.emit(bpf.KindClose, 0, 0, 0, nil)
	}
}

// endpoints lays the addresses out as the kernel does in an open record: two
// of 16 bytes, two ports, the IP version.
func endpoints(local, peer netip.AddrPort) []byte {
	b := make([]byte, 40)
	put := func(at int, a netip.Addr) {
		if a.Is4() {
			v := a.As4()
			copy(b[at:], v[:])
			b[36] = 4
			return
		}
		v := a.As16()
		copy(b[at:], v[:])
		b[36] = 6
	}
	put(0, local.Addr().Unmap())
	put(16, peer.Addr().Unmap())
	binary.LittleEndian.PutUint16(b[32:], local.Port())
	binary.LittleEndian.PutUint16(b[34:], peer.Port())
	return b
}
