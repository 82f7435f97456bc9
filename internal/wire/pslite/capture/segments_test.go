package capture

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/psidecar/psidecar/test/require"
)

// asPacket writes a segment as a packet of the given link type.
func asPacket(t testing.TB, link layers.LinkType, v6 bool, s *Segment) []byte {
	t.Helper()
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(s.Flow.Src.Port()), DstPort: layers.TCPPort(s.Flow.Dst.Port()),
		Seq: s.Seq, SYN: s.SYN, FIN: s.FIN, ACK: true, Window: 1000,
	}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: s.Flow.Src.Addr().AsSlice(), DstIP: s.Flow.Dst.Addr().AsSlice()}
	ether := layers.EthernetTypeIPv4
	if v6 {
		ether = layers.EthernetTypeIPv6
		src, dst := s.Flow.Src.Addr().As16(), s.Flow.Dst.Addr().As16()
		src[0], dst[0] = 0xfd, 0xfd // no mapped addresses
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: src[:], DstIP: dst[:]}
	}
	require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
	all := []gopacket.SerializableLayer{ip, tcp, gopacket.Payload(s.Payload)}
	switch link {
	case layers.LinkTypeEthernet:
		mac := []byte{2, 0, 0, 0, 0, 1}
		vlan := &layers.Dot1Q{VLANIdentifier: 7, Type: ether}
		all = append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: layers.EthernetTypeDot1Q}, vlan}, all...)
	case layers.LinkTypeLinuxSLL:
		all = append([]gopacket.SerializableLayer{gopacket.Payload([]byte{0, 0, 3, 4, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, byte(ether >> 8), byte(ether)})}, all...)
	case layers.LinkTypeNull:
		family := byte(2)
		if v6 {
			family = 10
		}
		all = append([]gopacket.SerializableLayer{gopacket.Payload([]byte{family, 0, 0, 0})}, all...)
	}
	buf := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, all...))
	return bytes.Clone(buf.Bytes())
}

// file writes segments as a pcap file.
func file(t testing.TB, link layers.LinkType, v6 bool, segs []Segment) []byte {
	t.Helper()
	return fileSnapped(t, link, v6, segs, 1<<16)
}

// fileSnapped records at most snaplen bytes of each packet.
func fileSnapped(t testing.TB, link layers.LinkType, v6 bool, segs []Segment, snaplen int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := pcapgo.NewWriter(&out)
	require.NoError(t, w.WriteFileHeader(1<<16, link))
	for i := range segs {
		p := asPacket(t, link, v6, &segs[i])
		n := min(len(p), snaplen)
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: n, Length: len(p)}, p[:n]))
	}
	return out.Bytes()
}

func TestFileFormats(t *testing.T) {
	segs := cut(pushStream(5, 100), 1400)
	for _, tc := range []struct {
		name string
		link layers.LinkType
		v6   bool
	}{
		{"Ethernet with VLAN, IPv4", layers.LinkTypeEthernet, false},
		{"Ethernet with VLAN, IPv6", layers.LinkTypeEthernet, true},
		{"cooked, IPv4", layers.LinkTypeLinuxSLL, false},
		{"cooked, IPv6", layers.LinkTypeLinuxSLL, true},
		{"raw, IPv4", layers.LinkTypeRaw, false},
		{"raw, IPv6", layers.LinkTypeRaw, true},
		{"loopback of BSD, IPv4", layers.LinkTypeNull, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			totals, err := Read(bytes.NewReader(file(t, tc.link, tc.v6, segs)), Options{}, nil)
			if err != nil || totals.Messages != 5 || totals.UnsyncedBytes+totals.SkippedPackets+totals.MissingBytes != 0 {
				t.Errorf("%+v, %v", totals, err)
			}
		})
	}
}

// tcpdump -s 200 loses most of the values; meta and sizes are still there.
func TestSnaplenOfAFile(t *testing.T) {
	segs := cut(pushStream(0, 0), 1000)
	seq := segs[len(segs)-1].Seq + uint32(len(segs[len(segs)-1].Payload))
	for ts := range 5 {
		p := push(ts, 300)
		segs = append(segs, Segment{Flow: testFlow, Seq: seq, Payload: p})
		seq += uint32(len(p))
	}
	for _, v6 := range []bool{false, true} {
		header := 40
		if v6 {
			header = 60
		}
		totals, err := Read(bytes.NewReader(fileSnapped(t, layers.LinkTypeRaw, v6, segs, 200)), Options{}, nil)
		want := uint64(5 * (len(push(0, 300)) + header - 200))
		if err != nil || totals.Messages != 5 || totals.MissingBytes != want || totals.UnsyncedBytes != 0 {
			t.Errorf("IPv6 %v: %+v, %v; want %d bytes missing", v6, totals, err, want)
		}
	}
}

func TestDamagedFiles(t *testing.T) {
	good := file(t, layers.LinkTypeRaw, false, cut(pushStream(5, 100), 1400))
	for _, tc := range []struct {
		name, file, want string
	}{
		{"empty", "", "only 0 bytes"},
		{"text", "No. Time Source\n", "no pcap or pcapng"},
		{"gzip", "\x1f\x8b\x08\x00\x00\x00\x00\x00", "no pcap or pcapng"},
		{"header cut off", string(good[:20]), "cut off"},
		{"packet cut off", string(good[:len(good)-1]), "truncated"},
		{"packet header cut off", string(good[:24+7]), "truncated"},
		{"pcapng cut off", "\x0a\x0d\x0d\x0a\x1c\x00\x00\x00", "cut off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tc.file), Options{}, nil)
			var damaged *Error
			if !errors.As(err, &damaged) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
	// What comes before the damage is kept.
	totals, err := Read(bytes.NewReader(good[:len(good)-1]), Options{}, nil)
	if err == nil || totals.Messages == 0 {
		t.Errorf("%+v, %v", totals, err)
	}
}

func TestEmitEndsReading(t *testing.T) {
	enough := errors.New("enough")
	n := 0
	_, err := Read(bytes.NewReader(file(t, layers.LinkTypeRaw, false, cut(pushStream(5, 100), 1400))), Options{}, func(*Message) error {
		n++
		return enough
	})
	if err != enough || n != 1 {
		t.Errorf("%d messages, %v", n, err)
	}
}

// FuzzRead reads any file; memory follows what is in it.
func FuzzRead(f *testing.F) {
	f.Add(file(f, layers.LinkTypeEthernet, false, cut(pushStream(2, 3), 50)))
	f.Add(file(f, layers.LinkTypeRaw, true, cut(pushStream(1, 3), 500)))
	f.Add([]byte("\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x1c\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		totals, err := Read(bytes.NewReader(b), Options{Data: true}, func(m *Message) error {
			_ = line(m)
			_ = m.Check()
			return nil
		})
		if errors.Is(err, io.EOF) {
			t.Error("a damaged file reads as a whole one")
		}
		if totals.UnsyncedBytes > uint64(len(b)) {
			t.Errorf("%d bytes unsynced of %d", totals.UnsyncedBytes, len(b))
		}
	})
}

// FuzzStream feeds a stream whose beginning may be unknown, cut and with holes.
func FuzzStream(f *testing.F) {
	f.Add(pushStream(3, 10), uint16(40), uint16(0), false)
	f.Add(push(1, 10), uint16(400), uint16(3), true)
	f.Fuzz(func(t *testing.T, b []byte, size, lose uint16, late bool) {
		segs := cut(b, int(size)+1)
		if late {
			segs = segs[1:]
		}
		if lose > 0 && int(lose) < len(segs) {
			segs = append(segs[:lose:lose], segs[lose+1:]...)
		}
		var payload uint64
		for _, s := range segs {
			payload += uint64(len(s.Payload))
		}
		if _, totals := replay(segs); totals.UnsyncedBytes > payload {
			t.Errorf("%d bytes unsynced of %d", totals.UnsyncedBytes, payload)
		}
	})
}
