package zmtp_test

import (
	"fmt"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
)

func ExampleParseCommand() {
	frame := zmtp.AppendCommand(nil, zmtp.CommandReady, zmtp.AppendProperty(nil, "Socket-Type", []byte("DEALER")))
	header, n, err := zmtp.CutHeader(frame)
	fmt.Println(header.Command(), header.Size, err)
	name, data, err := zmtp.ParseCommand(frame[n:])
	fmt.Printf("%s %v\n", name, err)
	ready, err := zmtp.ParseReady(data)
	fmt.Printf("%s %v\n", ready.SocketType, err)
	// Output:
	// true 28 <nil>
	// READY <nil>
	// DEALER <nil>
}
