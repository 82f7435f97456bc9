package zmtp

import "encoding/binary"

// AppendError appends an ERROR frame; the reason is cut to 255 bytes.
func AppendError(dst []byte, reason string) []byte {
	reason = reason[:min(len(reason), 255)]
	return AppendCommand(dst, CommandError, append([]byte{byte(len(reason))}, reason...))
}

// AppendPing appends a PING frame.
func AppendPing(dst []byte, ttl uint16, context []byte) []byte {
	data := binary.BigEndian.AppendUint16(nil, ttl)
	return AppendCommand(dst, CommandPing, append(data, context...))
}
