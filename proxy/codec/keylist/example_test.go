package keylist_test

import (
	"fmt"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/keylist"
)

// A list that both ends of a link have seen takes a few bytes.
func Example() {
	encoder := keylist.NewEncoder(keylist.DefaultLimits, nil)
	decoder := keylist.NewDecoder(keylist.DefaultLimits, nil)
	defer encoder.Close()
	defer decoder.Close()

	list := pslite.AppendKeys(nil, []uint64{3, 17, 18, 4711, 1 << 40})
	for range 2 {
		encoded := encoder.Append(nil, list)
		decoded, rest, err := decoder.Decode(encoded)
		fmt.Println(len(list), "bytes take", len(encoded), string(decoded) == string(list), len(rest), err)
	}
	// Output:
	// 40 bytes take 25 true 0 <nil>
	// 40 bytes take 2 true 0 <nil>
}
