package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Segment is one TCP segment of a recording. It is reused: the callback must copy the
// parts that it keeps.
type Segment struct {
	Time     time.Time
	Flow     Flow
	Seq, Ack uint32
	SYN, FIN bool
	RST, ACK bool
	Payload  []byte // valid during the call
	Missing  int    // bytes of the payload behind Payload that were not recorded
}

// Segments reads a pcap or pcapng file and hands over its TCP segments, over IPv4 or
// IPv6, in the file's order, which is that of the capture and not of the streams:
// segments may be missing, repeated or out of order. It returns how many packets it
// skipped because they were something else. An error of handle ends it; other errors
// are of type [*Error].
func Segments(r io.Reader, handle func(*Segment) error) (skipped uint64, err error) {
	in := &countingReader{r: r}
	src, err := openCapture(in)
	if err != nil {
		return 0, &Error{in.n, 0, err}
	}
	p := newPacketParser()
	for packets := 0; ; packets++ {
		data, ci, err := src.ZeroCopyReadPacketData()
		if err == io.EOF {
			return skipped, nil
		}
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the file ends inside a packet: it was truncated")
			}
			return skipped, &Error{in.n, packets, err}
		}
		s, ok := p.parse(src.link(ci), data)
		if !ok {
			skipped++
			continue
		}
		s.Time = ci.Timestamp
		if err := handle(s); err != nil {
			return skipped, err
		}
	}
}

// countingReader counts the bytes read, for errors.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// source is a reader of either file format.
type source struct {
	gopacket.ZeroCopyPacketDataSource
	first layers.LinkType
	mixed bool // pcapng: each packet may have a link type of its own
}

// link returns the link type of a packet: of pcapng files each interface may have
// another.
func (s *source) link(ci gopacket.CaptureInfo) layers.LinkType {
	if s.mixed && len(ci.AncillaryData) > 0 {
		if t, ok := ci.AncillaryData[0].(layers.LinkType); ok {
			return t
		}
	}
	return s.first
}

// openCapture distinguishes the formats by their first four bytes. A pcap file's
// magic number also shows its byte order, and whether its times are in nanoseconds.
func openCapture(r io.Reader) (*source, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	magic, err := in.Peek(4)
	if len(magic) < 4 {
		if err == io.EOF || err == nil {
			return nil, fmt.Errorf("the file has only %d bytes: no pcap or pcapng", len(magic))
		}
		return nil, err
	}
	switch m := binary.LittleEndian.Uint32(magic); m {
	case 0x0a0d0d0a:
		ng, err := pcapgo.NewNgReader(in, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		if err != nil {
			return nil, fmt.Errorf("reading the pcapng header: %w", cutOff(err))
		}
		return &source{ng, ng.LinkType(), true}, nil
	case 0xa1b2c3d4, 0xd4c3b2a1, 0xa1b23c4d, 0x4d3cb2a1:
		p, err := pcapgo.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("reading the pcap header: %w", cutOff(err))
		}
		return &source{p, p.LinkType(), false}, nil
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

// packetParser takes packets apart without allocating. Its layers are overwritten by
// each packet, and so is the segment.
type packetParser struct {
	eth   layers.Ethernet
	vlan  layers.Dot1Q
	sll   layers.LinuxSLL
	sll2  layers.LinuxSLL2
	loop  layers.Loopback
	ip4   layers.IPv4
	ip6   layers.IPv6
	ext   layers.IPv6ExtensionSkipper
	tcp   layers.TCP
	byTop map[gopacket.LayerType]*gopacket.DecodingLayerParser // by the layer that packets begin with
	found []gopacket.LayerType
	seg   Segment
}

// newPacketParser prepares a parser for each layer that a packet can begin with. They
// share the layers' memory, since one packet is parsed at a time.
func newPacketParser() *packetParser {
	p := &packetParser{byTop: map[gopacket.LayerType]*gopacket.DecodingLayerParser{}}
	for _, top := range []gopacket.LayerType{
		layers.LayerTypeEthernet, layers.LayerTypeLinuxSLL, layers.LayerTypeLinuxSLL2,
		layers.LayerTypeLoopback, layers.LayerTypeIPv4, layers.LayerTypeIPv6,
	} {
		parser := gopacket.NewDecodingLayerParser(top,
			&p.eth, &p.vlan, &p.sll, &p.sll2, &p.loop, &p.ip4, &p.ip6, &p.ext, &p.tcp)
		// TCP's payload has no layer here: that is not an error.
		parser.IgnoreUnsupported = true
		p.byTop[top] = parser
	}
	return p
}

// topLayer returns the layer that packets of a link type begin with. Raw packets show
// their version in their first half byte.
func topLayer(link layers.LinkType, data []byte) gopacket.LayerType {
	switch link {
	case layers.LinkTypeEthernet:
		return layers.LayerTypeEthernet
	case layers.LinkTypeLinuxSLL:
		return layers.LayerTypeLinuxSLL
	case layers.LinkTypeLinuxSLL2:
		return layers.LayerTypeLinuxSLL2
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		return layers.LayerTypeLoopback
	case layers.LinkTypeIPv4:
		return layers.LayerTypeIPv4
	case layers.LinkTypeIPv6:
		return layers.LayerTypeIPv6
	case layers.LinkTypeRaw, 12: // 12: DLT_RAW as some systems write it
		if len(data) > 0 && data[0]>>4 == 6 {
			return layers.LayerTypeIPv6
		}
		return layers.LayerTypeIPv4
	}
	return gopacket.LayerTypeZero
}

// parse returns the TCP segment of a packet; false for anything else, and for
// fragments, of which a TCP header has only the first.
func (p *packetParser) parse(link layers.LinkType, data []byte) (*Segment, bool) {
	p.ext.Contents = nil // of the packet before
	parser := p.byTop[topLayer(link, data)]
	if parser == nil || parser.DecodeLayers(data, &p.found) != nil {
		return nil, false
	}
	var src, dst netip.Addr
	var ok bool
	want := -1 // bytes of the TCP segment, by the IP header
	for _, layer := range p.found {
		switch layer {
		case layers.LayerTypeIPv4:
			if p.ip4.FragOffset != 0 || p.ip4.Flags&layers.IPv4MoreFragments != 0 {
				return nil, false
			}
			src, _ = netip.AddrFromSlice(p.ip4.SrcIP)
			dst, ok = netip.AddrFromSlice(p.ip4.DstIP)
			want = int(p.ip4.Length) - 4*int(p.ip4.IHL)
		case layers.LayerTypeIPv6:
			src, _ = netip.AddrFromSlice(p.ip6.SrcIP)
			dst, ok = netip.AddrFromSlice(p.ip6.DstIP)
			want = int(p.ip6.Length)
		case layers.LayerTypeIPv6Fragment:
			return nil, false
		case layers.LayerTypeTCP:
			p.seg = Segment{
				Flow: Flow{
					netip.AddrPortFrom(src.Unmap(), uint16(p.tcp.SrcPort)),
					netip.AddrPortFrom(dst.Unmap(), uint16(p.tcp.DstPort)),
				},
				Seq: p.tcp.Seq, Ack: p.tcp.Ack,
				SYN: p.tcp.SYN, FIN: p.tcp.FIN, RST: p.tcp.RST, ACK: p.tcp.ACK,
				Payload: p.tcp.Payload,
			}
			// The length of IPv6 counts extension headers, which are no part of the
			// segment.
			want -= 4*int(p.tcp.DataOffset) + len(p.ext.Contents)
			// Captures with a short snap length have headers and the beginning of the
			// payload; the IP header still says how long it was.
			if missing := want - len(p.tcp.Payload); missing > 0 && parser.Truncated {
				p.seg.Missing = missing
			}
			return &p.seg, ok
		}
	}
	return nil, false
}
