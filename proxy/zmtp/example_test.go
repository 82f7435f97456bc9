package zmtp_test

import (
	"fmt"

	"github.com/psidecar/psidecar/proxy/zmtp"
)

func ExampleParseCommand() {
	frame := zmtp.AppendCommand(nil, zmtp.CommandReady, zmtp.AppendProperty(nil, "Socket-Type", []byte("DEALER")))
	header, n, err := zmtp.CutHeader(frame)
	fmt.Println(header.Command(), header.Size, err)
	name, data, err := zmtp.ParseCommand(frame[n:])
	fmt.Printf("%s %v\n", name, err)
	for property, value := range zmtp.Properties(data) {
		fmt.Printf("%s=%s\n", property, value)
	}
	// Output:
	// true 28 <nil>
	// READY <nil>
	// Socket-Type=DEALER
}
