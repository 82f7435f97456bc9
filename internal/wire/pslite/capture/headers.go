package capture

import (
	"encoding/binary"
	"net/netip"
)

// linkType says what packets begin with; see tcpdump.org/linktypes.html.
type linkType uint16

const (
	linkNull      linkType = 0 // loopback of BSD
	linkEthernet  linkType = 1
	linkRawOld    linkType = 12 // linkRaw as some systems write it
	linkRaw       linkType = 101
	linkLoop      linkType = 108 // loopback of OpenBSD
	linkLinuxSLL  linkType = 113
	linkIPv4      linkType = 228
	linkIPv6      linkType = 229
	linkLinuxSLL2 linkType = 276
)

// Numbers of protocols, of Ethernet and of IP.
const (
	etherIPv4 = 0x0800
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd
	etherQinQ = 0x88a8

	protoHopByHop = 0
	protoIPv4     = 4
	protoTCP      = 6
	protoIPv6     = 41
	protoRouting  = 43
	protoOptions  = 60
)

// parseSegment returns the TCP segment of a packet, without its time, in s; false for anything
// else, and for fragments, of which a TCP header has only the first.
func parseSegment(s *Segment, link linkType, data []byte) bool {
	proto, data, ok := network(link, data)
	*s = Segment{}
	// Of packets in packets, as of tunnels, the innermost counts.
	for ok {
		switch proto {
		case protoIPv4:
			proto, data, ok = s.ipv4(data)
		case protoIPv6:
			proto, data, ok = s.ipv6(data)
		case protoTCP:
			return s.tcp(data)
		default:
			return false
		}
	}
	return false
}

// network returns the IP packet in a packet, and its version as the number that IP has for it.
func network(link linkType, data []byte) (proto byte, ip []byte, ok bool) {
	head, at := 0, -1 // bytes of the header, and where the Ethernet type stands in it
	switch link {
	case linkEthernet:
		head, at = 14, 12
	case linkLinuxSLL:
		head, at = 16, 14
	case linkLinuxSLL2:
		head, at = 20, 0
	case linkNull, linkLoop:
		head = 4
	case linkRaw, linkRawOld, linkIPv4, linkIPv6:
	default:
		return 0, nil, false
	}
	if len(data) <= head {
		return 0, nil, false
	}
	header, data := data[:head], data[head:]
	switch {
	case at >= 0:
		return ethernet(binary.BigEndian.Uint16(header[at:]), data)
	case head > 0:
		return loopback(header, data)
	case link == linkIPv6, link != linkIPv4 && data[0]>>4 == 6:
		return protoIPv6, data, true
	}
	return protoIPv4, data, true
}

// ethernet returns the IP packet behind an Ethernet header and VLANs' tags.
func ethernet(ether uint16, data []byte) (proto byte, ip []byte, ok bool) {
	for (ether == etherVLAN || ether == etherQinQ) && len(data) >= 4 {
		ether, data = binary.BigEndian.Uint16(data[2:]), data[4:]
	}
	switch ether {
	case etherIPv4:
		return protoIPv4, data, true
	case etherIPv6:
		return protoIPv6, data, true
	}
	return 0, nil, false
}

// loopback returns the IP packet behind an address family, which is of the byte order of the
// system that recorded it.
func loopback(header, data []byte) (proto byte, ip []byte, ok bool) {
	family := binary.LittleEndian.Uint32(header)
	if header[0] == 0 && header[1] == 0 {
		family = binary.BigEndian.Uint32(header)
	}
	switch family {
	case 2:
		return protoIPv4, data, true
	case 10, 24, 28, 30: // Linux, NetBSD and OpenBSD, FreeBSD, macOS
		return protoIPv6, data, true
	}
	return 0, nil, false
}

// ipv4 reads an IPv4 header, and returns what follows it.
func (s *Segment) ipv4(data []byte) (proto byte, rest []byte, ok bool) {
	if len(data) < 20 {
		return 0, nil, false
	}
	length, head := int(binary.BigEndian.Uint16(data[2:])), int(data[0]&0xf)*4
	if length == 0 { // recorded before the network card has cut it into packets
		length = len(data)
	}
	const moreFragmentsAndOffset = 0x3fff
	if head < 20 || head > min(length, len(data)) || binary.BigEndian.Uint16(data[6:])&moreFragmentsAndOffset != 0 {
		return 0, nil, false
	}
	s.addresses(data[12:16], data[16:20])
	return data[9], s.within(data, head, length), true
}

// ipv6 reads an IPv6 header and its extensions, and returns what follows them.
func (s *Segment) ipv6(data []byte) (proto byte, rest []byte, ok bool) {
	const head = 40
	if len(data) < head {
		return 0, nil, false
	}
	length := head + int(binary.BigEndian.Uint16(data[4:]))
	if length == head { // more than the field can say, and an option does
		length = len(data)
	}
	s.addresses(data[8:24], data[24:40])
	proto, rest = data[6], s.within(data, head, length)
	for proto == protoHopByHop || proto == protoRouting || proto == protoOptions {
		if len(rest) < 2 || len(rest) < 8+8*int(rest[1]) {
			return 0, nil, false
		}
		proto, rest = rest[0], rest[8+8*int(rest[1]):]
	}
	return proto, rest, true
}

func (s *Segment) addresses(src, dst []byte) {
	from, _ := netip.AddrFromSlice(src)
	to, _ := netip.AddrFromSlice(dst)
	s.Flow = Flow{netip.AddrPortFrom(from.Unmap(), 0), netip.AddrPortFrom(to.Unmap(), 0)}
}

// within returns what follows a header in a packet of that length, of which data was recorded,
// maybe with bytes that filled a frame. Captures with a short snap length have headers and the
// beginning of the payload.
func (s *Segment) within(data []byte, head, length int) []byte {
	s.Missing = max(length-len(data), 0)
	return data[head:min(length, len(data))]
}

// tcp reads a TCP header.
func (s *Segment) tcp(data []byte) bool {
	if len(data) < 20 {
		return false
	}
	head := int(data[12]>>4) * 4
	if head < 20 || head > len(data) {
		return false
	}
	s.Flow.Src = netip.AddrPortFrom(s.Flow.Src.Addr(), binary.BigEndian.Uint16(data))
	s.Flow.Dst = netip.AddrPortFrom(s.Flow.Dst.Addr(), binary.BigEndian.Uint16(data[2:]))
	s.Seq, s.Ack = binary.BigEndian.Uint32(data[4:]), binary.BigEndian.Uint32(data[8:])
	flags := data[13]
	s.FIN, s.SYN, s.RST, s.ACK = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&16 != 0
	s.Payload = data[head:]
	return true
}
