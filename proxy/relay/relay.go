// Package relay carries the bytes of one connection between the job's process
// and the link to another proxy.
//
// Bytes go through as they are, moved by the kernel (splice), unless a codec
// was agreed on for the link and the stream turns out to be PS-lite's. Then
// each direction has a [Sender] at one end, which is shown the messages and
// may encode them, and a [Receiver] at the other. An encoded message travels
// as a ZMTP command that only proxies see, followed, where the sender left
// frames as they are, by a ZMTP message of those:
//
//	command "PS": flags (1 byte: 1 = frames follow, 2 = no more ZMTP), head
//
// All other frames, commands among them, pass in order and as they are. What
// comes out at the far end is byte for byte what went in.
package relay
