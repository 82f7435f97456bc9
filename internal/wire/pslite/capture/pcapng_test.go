package capture

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
)

// ngBlock appends a block of a pcapng file.
func ngBlock(to []byte, order binary.AppendByteOrder, kind uint32, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	to = order.AppendUint32(order.AppendUint32(slices.Clip(to), kind), uint32(len(body)+12))
	return order.AppendUint32(append(to, body...), uint32(len(body)+12))
}

// ngSectionBlock appends the head of a section.
func ngSectionBlock(to []byte, order binary.AppendByteOrder, major uint16) []byte {
	body := order.AppendUint16(order.AppendUint16(order.AppendUint32(nil, 0x1a2b3c4d), major), 0)
	return ngBlock(to, order, ngSection, order.AppendUint64(body, 1<<64-1))
}

// ngInterfaceBlock appends an interface; options as code, value, code, value.
func ngInterfaceBlock(to []byte, order binary.AppendByteOrder, link linkType, snaplen uint32, options ...[]byte) []byte {
	body := order.AppendUint32(order.AppendUint32(nil, 0), snaplen)
	if order.String() == binary.BigEndian.String() {
		binary.BigEndian.PutUint16(body, uint16(link))
	} else {
		binary.LittleEndian.PutUint16(body, uint16(link))
	}
	for i := 0; i < len(options); i += 2 {
		body = order.AppendUint16(order.AppendUint16(body, uint16(options[i][0])), uint16(len(options[i+1])))
		body = append(body, options[i+1]...)
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
	}
	if len(options) > 0 {
		body = append(body, 0, 0, 0, 0)
	}
	return ngBlock(to, order, ngInterface, body)
}

// ngPacketBlock appends a packet of an interface.
func ngPacketBlock(to []byte, order binary.AppendByteOrder, of uint32, units uint64, data []byte, length int) []byte {
	body := order.AppendUint32(order.AppendUint32(order.AppendUint32(nil, of), uint32(units>>32)), uint32(units))
	body = order.AppendUint32(order.AppendUint32(body, uint32(len(data))), uint32(length))
	return ngBlock(to, order, ngEnhancedPacket, append(body, data...))
}

// ngFile has sections of both byte orders, between them one of an unknown version, interfaces of
// several links and resolutions, and blocks of all kinds.
func ngFile(t testing.TB) []byte {
	seg := Segment{Flow: testFlow, Seq: 7, SYN: true, Payload: []byte("what is sent")}
	eth, raw := asPacket(t, layers.LinkTypeEthernet, false, &seg), asPacket(t, layers.LinkTypeRaw, true, &seg)
	var file []byte
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		file = ngSectionBlock(file, order, 1)
		file = ngInterfaceBlock(file, order, linkEthernet, 1<<16)
		file = ngInterfaceBlock(file, order, linkRaw, 70, []byte{2}, []byte("eth0"), []byte{ngResolution}, []byte{9}, []byte{ngOffset}, order.AppendUint64(nil, 1000))
		file = ngPacketBlock(file, order, 0, 1_700_000_000_123_456, eth, len(eth))
		file = ngBlock(file, order, 4, []byte("names that are resolved"))
		file = ngPacketBlock(file, order, 1, 1_700_000_000_123_456_789, raw[:70], len(raw)) // not recorded whole
		file = ngPacketBlock(file, order, 1, 0, raw[:20], len(raw))                         // not even its header
		file = ngBlock(file, order, ngSimplePacket, append(order.AppendUint32(nil, uint32(len(eth))), eth...))
		obsolete := order.AppendUint64(order.AppendUint16(order.AppendUint16(nil, 1), 3), 0)
		file = ngBlock(file, order, ngObsoletePacket, append(order.AppendUint32(order.AppendUint32(obsolete, uint32(len(raw))), uint32(len(raw))), raw...))
		file = ngSectionBlock(file, order, 9)
		file = ngBlock(file, order, ngEnhancedPacket, []byte("something else"))
	}
	return file
}

func TestPcapng(t *testing.T) {
	file := ngFile(t)
	compare(t, "blocks of all kinds", file)
	got, _, _ := segmentsOf(file)
	var times []string
	for _, s := range got {
		times = append(times, s.Time.Format(time.RFC3339Nano))
	}
	half := []string{"2023-11-14T22:13:20.123456Z", "2023-11-14T22:30:00.123456789Z", "0001-01-01T00:00:00Z", "1970-01-01T00:16:40Z"}
	if want := slices.Concat(half, half); !slices.Equal(times, want) {
		t.Errorf("segments at %v, want %v", times, want)
	}
	if missing := got[1].Missing; missing == 0 {
		t.Error("nothing is missing in a packet that was not recorded whole")
	}
	// A resolution of 2^-10 s: 512 units are half a second.
	eth := asPacket(t, layers.LinkTypeEthernet, false, &Segment{Flow: testFlow})
	order := binary.LittleEndian
	binaryUnits := ngPacketBlock(ngInterfaceBlock(ngSectionBlock(nil, order, 1), order, linkEthernet, 0, []byte{ngResolution}, []byte{0x80 | 10}), order, 0, 3*1024+512, eth, len(eth))
	if got, _, err := segmentsOf(binaryUnits); err != nil || len(got) != 1 || !got[0].Time.Equal(time.Unix(3, 5e8)) {
		t.Errorf("times in 1/1024 s: %+v, %v", got, err)
	}
}

func TestDamagedPcapng(t *testing.T) {
	order := binary.LittleEndian
	section := ngSectionBlock(nil, order, 1)
	link := ngInterfaceBlock(section, order, linkEthernet, 0)
	for _, tc := range []struct {
		name string
		file []byte
		want string
	}{
		{"no byte order", append(slices.Clone(section[:8]), 1, 2, 3, 4), "byte order 01 02 03 04"},
		{"a short section", []byte("\n\r\r\n\x08\x00\x00\x00\x4d\x3c\x2b\x1a"), "8 bytes"},
		{"a short block", append(slices.Clone(section), 5, 0, 0, 0, 11, 0, 0, 0), "a block with 11 bytes"},
		{"a short interface", ngBlock(section, order, ngInterface, []byte{1, 0, 0, 0}), "an interface that is cut off"},
		{"an option beyond its block", ngBlock(section, order, ngInterface, []byte{1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 200, 0}), "option that is cut off"},
		{"times that no number holds", ngInterfaceBlock(section, order, linkEthernet, 0, []byte{ngResolution}, []byte{20}), "0x14"},
		{"a packet without a head", ngBlock(link, order, ngEnhancedPacket, []byte{0, 0, 0, 0}), "head is cut off"},
		{"a packet of no interface", ngPacketBlock(link, order, 1, 0, nil, 0), "interface 1, of which the file has 1"},
		{"a packet beyond its block", ngBlock(link, order, ngSimplePacket, []byte{200, 0, 0, 0}), "200 bytes in a block with room for 0"},
		{"a block beyond the file", append(slices.Clone(link), 6, 0, 0, 0, 0, 0, 0, 0xf0), "truncated"},
	} {
		_, _, err := segmentsOf(tc.file)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q in it", tc.name, err, tc.want)
		}
	}
}

// A packet in a packet, of which the inner one counts.
func TestTunnels(t *testing.T) {
	seg := Segment{Flow: testFlow, Seq: 7, Payload: []byte("what is sent")}
	inner := asPacket(t, layers.LinkTypeRaw, false, &seg)
	outer := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(inner)))
	outer = append(outer, 0, 0, 0, 0, 64, protoIPv4, 0, 0, 10, 9, 9, 1, 10, 9, 9, 2)
	var s Segment
	if !parseSegment(&s, linkRaw, append(outer, inner...)) || s.Flow != testFlow || s.Seq != 7 || string(s.Payload) != "what is sent" {
		t.Errorf("the segment is %+v", s)
	}
}
