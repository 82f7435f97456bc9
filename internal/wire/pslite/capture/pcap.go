package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// packet is one of a recording.
type packet struct {
	time time.Time // zero if the file does not say
	link linkType
	data []byte // as far as it was recorded, valid until the next one
}

// reader reads what it is asked for into a buffer of its own.
type reader struct {
	in    *bufio.Reader
	order binary.ByteOrder
	buf   []byte
}

// piece bounds what is allocated for bytes that have not been read.
const piece = 1 << 20

// readBytes returns the next n bytes. They are valid until the next call. An error at the end of the
// file is io.EOF if there is no further byte, io.ErrUnexpectedEOF else.
func (r *reader) readBytes(n int) ([]byte, error) {
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		more := min(n-len(r.buf), piece)
		r.buf = slices.Grow(r.buf, more)
		at := len(r.buf)
		r.buf = r.buf[:at+more]
		if _, err := io.ReadFull(r.in, r.buf[at:]); err != nil {
			if at > 0 {
				err = inside(err)
			}
			return nil, err
		}
	}
	return r.buf, nil
}

// inside says of an error of reading that more had to come.
func inside(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// pcapReader reads a pcap file, whose packets are of one link type.
type pcapReader struct {
	reader
	link    linkType
	snaplen uint32
	tick    int64 // the unit of fractions of a second, in ns
}

// maxSnaplen is what libpcap takes a packet for at most. Some programs write packets
// that are longer than their file says.
const maxSnaplen = 262144

func newPcapReader(in *bufio.Reader) (*pcapReader, error) {
	p := &pcapReader{reader: reader{in: in, order: binary.LittleEndian}, tick: 1000}
	h, err := p.readBytes(24)
	if err != nil {
		return nil, err
	}
	switch binary.LittleEndian.Uint32(h) {
	case pcapMicrosBig:
		p.order = binary.BigEndian
	case pcapNanos:
		p.tick = 1
	case pcapNanosBig:
		p.order, p.tick = binary.BigEndian, 1
	}
	if major, minor := p.order.Uint16(h[4:]), p.order.Uint16(h[6:]); major != 2 || minor != 4 {
		return nil, fmt.Errorf("version %d.%d of the format is unknown", major, minor)
	}
	p.snaplen = p.order.Uint32(h[16:])
	// The upper bits say what follows each packet.
	p.link = linkType(p.order.Uint32(h[20:]))
	return p, nil
}

// next returns the next packet; io.EOF after the last.
func (p *pcapReader) next() (packet, error) {
	h, err := p.readBytes(16)
	if err != nil {
		return packet{}, err
	}
	at := time.Unix(int64(p.order.Uint32(h)), int64(p.order.Uint32(h[4:]))*p.tick).UTC()
	n, whole := p.order.Uint32(h[8:]), p.order.Uint32(h[12:])
	switch {
	case n > max(p.snaplen, maxSnaplen):
		return packet{}, fmt.Errorf("a packet of %d bytes, where at most %d are recorded of each", n, p.snaplen)
	case n > whole:
		return packet{}, fmt.Errorf("%d bytes recorded of a packet of %d", n, whole)
	}
	data, err := p.readBytes(int(n))
	return packet{at, p.link, data}, inside(err)
}

// First four bytes of the formats, read as little endian.
const (
	pcapMicros    = 0xa1b2c3d4
	pcapMicrosBig = 0xd4c3b2a1
	pcapNanos     = 0xa1b23c4d
	pcapNanosBig  = 0x4d3cb2a1
	ngSection     = 0x0a0d0d0a // the same in both byte orders
)

// openCapture distinguishes the formats by their first four bytes. A pcap file's
// magic number also shows its byte order, and whether its times are in nanoseconds. The
// function returned gives the next packet; io.EOF after the last.
func openCapture(r io.Reader) (next func() (packet, error), err error) {
	in := bufio.NewReaderSize(r, 1<<16)
	magic, err := in.Peek(4)
	if len(magic) < 4 {
		if err == io.EOF {
			return nil, fmt.Errorf("the file has only %d bytes: no pcap or pcapng", len(magic))
		}
		return nil, err
	}
	switch m := binary.LittleEndian.Uint32(magic); m {
	case ngSection:
		ng, err := newNgReader(in)
		if err != nil {
			return nil, fmt.Errorf("reading the pcapng header: %w", cutOff(err))
		}
		return ng.next, nil
	case pcapMicros, pcapMicrosBig, pcapNanos, pcapNanosBig:
		p, err := newPcapReader(in)
		if err != nil {
			return nil, fmt.Errorf("reading the pcap header: %w", cutOff(err))
		}
		return p.next, nil
	default:
		return nil, fmt.Errorf("begins with % x: no pcap or pcapng file (record one with tcpdump -w)", magic)
	}
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the file is cut off")
	}
	return err
}
