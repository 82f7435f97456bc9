package capture

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/psidecar/psidecar/test/require"
)

// packetSource is a reader of gopacket's.
type packetSource interface {
	gopacket.PacketDataSource
	LinkType() layers.LinkType
}

// byGopacket reads a file's TCP segments with gopacket, up to its end or the first error.
func byGopacket(file []byte) (all []Segment, skipped uint64, err error) {
	var src packetSource
	if bytes.HasPrefix(file, []byte("\n\r\r\n")) {
		src, err = pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	} else {
		src, err = pcapgo.NewReader(bytes.NewReader(file))
	}
	if err != nil {
		return nil, 0, err
	}
	p := newPacketParser()
	for {
		data, ci, err := src.ReadPacketData()
		if err == io.EOF {
			return all, skipped, nil
		}
		if err != nil {
			return all, skipped, err
		}
		link := src.LinkType()
		if len(ci.AncillaryData) > 0 {
			if t, ok := ci.AncillaryData[0].(layers.LinkType); ok {
				link = t
			}
		}
		s, ok := p.parse(link, data)
		if !ok {
			skipped++
			continue
		}
		s.Time = ci.Timestamp
		all = append(all, *s)
	}
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
			if missing := want - len(p.tcp.Payload); missing > 0 && parser.Truncated {
				p.seg.Missing = missing
			}
			return &p.seg, ok
		}
	}
	return nil, false
}

// segmentsOf reads a file's segments, up to its end or the first error.
func segmentsOf(file []byte) (all []Segment, skipped uint64, err error) {
	skipped, err = Segments(bytes.NewReader(file), func(s *Segment) error {
		kept := *s
		kept.Payload = bytes.Clone(s.Payload)
		all = append(all, kept)
		return nil
	})
	return all, skipped, err
}

func sameSegment(a, b Segment) bool {
	samePayload := bytes.Equal(a.Payload, b.Payload)
	a.Payload, b.Payload = nil, nil
	return samePayload && a.Time.Equal(b.Time) && a.Flow == b.Flow && a.Seq == b.Seq && a.Ack == b.Ack && a.SYN == b.SYN && a.FIN == b.FIN && a.RST == b.RST && a.ACK == b.ACK && a.Missing == b.Missing
}

// Recordings of real programs have the segments that gopacket finds in them.
func TestSegmentsAreThoseOfGopacket(t *testing.T) {
	for _, name := range []string{"dmlc-kv-2s2w.pcapng", "dmlc-kv-1s3w.pcapng", "dmlc-resend-2s2w.pcapng", "dmlc-heartbeat-2s1w.pcapng", "byteps-kv-2s2w.pcapng"} {
		file := require.Value(os.ReadFile(require.Capture(t, name)))(t)
		compare(t, name, file)
	}
}

func compare(t *testing.T, name string, file []byte) {
	t.Helper()
	want, wantSkipped, err := byGopacket(file)
	if err != nil {
		t.Fatalf("%s: gopacket: %v", name, err)
	}
	got, skipped, err := segmentsOf(file)
	if err != nil || skipped != wantSkipped || len(got) != len(want) {
		t.Fatalf("%s: %d segments and %d packets skipped, %v; gopacket has %d and %d", name, len(got), skipped, err, len(want), wantSkipped)
	}
	for i := range want {
		if !sameSegment(got[i], want[i]) {
			t.Fatalf("%s: segment %d is %+v, by gopacket %+v", name, i, got[i], want[i])
		}
	}
}

// FuzzSegments compares with gopacket whatever it can read. It takes less for a segment: options of
// headers are not looked at here.
func FuzzSegments(f *testing.F) {
	f.Add(ngFile(f))
	segs := cut(pushStream(2, 3), 50)
	for _, link := range []layers.LinkType{layers.LinkTypeEthernet, layers.LinkTypeLinuxSLL, layers.LinkTypeNull, layers.LinkTypeRaw} {
		f.Add(file(f, link, false, segs))
		f.Add(fileSnapped(f, link, true, segs, 80))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want, _, err := byGopacket(b)
		if err != nil {
			want = nil // what it reads up to an error may end elsewhere
		}
		got, _, gotErr := segmentsOf(b)
		if err != nil || gotErr != nil {
			return
		}
		at := 0
		for _, w := range want {
			for at < len(got) {
				// Fractions of more than a second overflow there.
				if w.Time = got[at].Time; sameSegment(got[at], w) {
					break
				}
				at++
			}
			if at == len(got) {
				t.Fatalf("gopacket finds %+v, which is none of %+v", w, got)
			}
			at++
		}
	})
}
