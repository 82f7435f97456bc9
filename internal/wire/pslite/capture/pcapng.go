package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"time"
)

// Types of pcapng blocks that are read. Others are skipped.
const (
	ngInterface      = 1
	ngObsoletePacket = 2
	ngSimplePacket   = 3
	ngEnhancedPacket = 6
)

// Options of an interface.
const (
	ngEnd        = 0
	ngResolution = 9
	ngOffset     = 14
)

// ngReader reads a pcapng file: sections, each with a byte order and interfaces of its own.
type ngReader struct {
	reader
	interfaces []ngLink
	skip       bool // the section is of an unknown version
}

// ngLink is what an interface block says.
type ngLink struct {
	link    linkType
	snaplen uint32
	units   uint64 // of times, a second
	offset  uint64 // of times, in seconds
}

// newNgReader reads the head of the first section.
func newNgReader(in *bufio.Reader) (*ngReader, error) {
	r := &ngReader{reader: reader{in: in, order: binary.LittleEndian}}
	if _, err := r.readBytes(4); err != nil {
		return nil, err
	}
	return r, inside(r.section())
}

// section reads the head of a section behind its type.
func (r *ngReader) section() error {
	h, err := r.readBytes(8)
	if err != nil {
		return inside(err)
	}
	const magic = 0x1a2b3c4d
	switch {
	case binary.LittleEndian.Uint32(h[4:]) == magic:
		r.order = binary.LittleEndian
	case binary.BigEndian.Uint32(h[4:]) == magic:
		r.order = binary.BigEndian
	default:
		return fmt.Errorf("a section with the byte order % x: the file is damaged", h[4:])
	}
	n := r.order.Uint32(h)
	if n < 28 {
		return fmt.Errorf("the head of a section with %d bytes: the file is damaged", n)
	}
	if h, err = r.readBytes(4); err != nil {
		return inside(err)
	}
	r.skip = r.order.Uint16(h) != 1
	r.interfaces = r.interfaces[:0]
	return r.discard(n - 16)
}

// discard skips n bytes.
func (r *ngReader) discard(n uint32) error {
	_, err := io.CopyN(io.Discard, r.in, int64(n))
	return inside(err)
}

// next returns the next packet; io.EOF after the last.
func (r *ngReader) next() (packet, error) {
	for {
		h, err := r.readBytes(4)
		if err != nil {
			return packet{}, err
		}
		kind := r.order.Uint32(h)
		if kind == ngSection {
			if err := r.section(); err != nil {
				return packet{}, err
			}
			continue
		}
		if h, err = r.readBytes(4); err != nil {
			return packet{}, inside(err)
		}
		n := r.order.Uint32(h)
		if n < 12 {
			return packet{}, fmt.Errorf("a block with %d bytes: the file is damaged", n)
		}
		n -= 8
		if r.skip || kind != ngInterface && kind != ngObsoletePacket && kind != ngSimplePacket && kind != ngEnhancedPacket {
			if err := r.discard(n); err != nil {
				return packet{}, err
			}
			continue
		}
		body, err := r.readBytes(int(n))
		if err != nil {
			return packet{}, inside(err)
		}
		body = body[:n-4] // the block's length stands behind it once more
		if kind == ngInterface {
			err = r.addInterface(body)
		} else {
			return r.packet(kind, body)
		}
		if err != nil {
			return packet{}, err
		}
	}
}

// addInterface reads an interface block.
func (r *ngReader) addInterface(body []byte) error {
	if len(body) < 8 {
		return errors.New("an interface that is cut off: the file is damaged")
	}
	i := ngLink{link: linkType(r.order.Uint16(body)), snaplen: r.order.Uint32(body[4:]), units: 1e6}
	for options := body[8:]; len(options) >= 4; {
		code, n := r.order.Uint16(options), int(r.order.Uint16(options[2:]))
		if code == ngEnd {
			break
		}
		if len(options) < 4+n {
			return errors.New("an interface's option that is cut off: the file is damaged")
		}
		value := options[4 : 4+n]
		switch {
		case code == ngResolution && n >= 1:
			// A negative power of 10, or of 2 if the first bit is set.
			if e := value[0] & 0x7f; value[0]&0x80 != 0 && e < 64 {
				i.units = 1 << e
			} else if value[0]&0x80 == 0 && e < 20 {
				i.units = uint64(math.Pow10(int(e)))
			} else {
				return fmt.Errorf("an interface with times of the resolution %#x, which is too high", value[0])
			}
		case code == ngOffset && n >= 8:
			i.offset = r.order.Uint64(value)
		}
		options = options[min(4+(n+3)&^3, len(options)):]
	}
	r.interfaces = append(r.interfaces, i)
	return nil
}

// packet reads a block with a packet.
func (r *ngReader) packet(kind uint32, body []byte) (packet, error) {
	head := 20
	if kind == ngSimplePacket {
		head = 4
	}
	if len(body) < head {
		return packet{}, errors.New("a packet whose head is cut off: the file is damaged")
	}
	of := uint32(0)
	switch kind {
	case ngEnhancedPacket:
		of = r.order.Uint32(body)
	case ngObsoletePacket:
		of = uint32(r.order.Uint16(body))
	}
	if int64(of) >= int64(len(r.interfaces)) {
		return packet{}, fmt.Errorf("a packet of interface %d, of which the file has %d", of, len(r.interfaces))
	}
	i := &r.interfaces[of]
	p := packet{link: i.link}
	var n uint32
	if kind == ngSimplePacket {
		if n = r.order.Uint32(body); i.snaplen != 0 {
			n = min(n, i.snaplen)
		}
	} else {
		p.time = i.timeOf(uint64(r.order.Uint32(body[4:]))<<32 | uint64(r.order.Uint32(body[8:])))
		n = r.order.Uint32(body[12:])
	}
	if uint64(n) > uint64(len(body)-head) {
		return packet{}, fmt.Errorf("a packet of %d bytes in a block with room for %d: the file is damaged", n, len(body)-head)
	}
	p.data = body[head : head+int(n)]
	return p, nil
}

// timeOf returns the time of a packet.
func (i *ngLink) timeOf(units uint64) time.Time {
	seconds, rest := units/i.units, units%i.units
	high, low := bits.Mul64(rest, 1e9)
	nanos, _ := bits.Div64(high, low, i.units)
	return time.Unix(int64(seconds+i.offset), int64(nanos)).UTC()
}
