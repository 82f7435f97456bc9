package bpf

import (
	"encoding/binary"
	"net/netip"
)

// native is the byte order of the programs' structures: the object is
// compiled for little endian machines only.
var native = binary.LittleEndian

// endpointsSize is the size of struct endpoints in wire.h: two addresses of 16
// bytes (IPv4 in the first four), two ports in host order, the IP version.
const endpointsSize = 40

// parseEndpoints decodes a struct endpoints of endpointsSize bytes.
func parseEndpoints(b []byte) (local, peer netip.AddrPort) {
	address := func(a []byte) netip.Addr {
		if b[36] == 4 {
			return netip.AddrFrom4([4]byte(a[:4]))
		}
		return netip.AddrFrom16([16]byte(a[:16])).Unmap()
	}
	return netip.AddrPortFrom(address(b[0:16]), native.Uint16(b[32:])),
		netip.AddrPortFrom(address(b[16:32]), native.Uint16(b[34:]))
}
