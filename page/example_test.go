package page_test

import (
	"fmt"

	"github.com/psidecar/psidecar/page"
)

func ExampleNameMap_Key() {
	m, err := page.ParseNames("names.yaml", []byte("- {name: users, first: 0, last: 1599, keys-per-row: 16}\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q %q\n", m.Key("", 35), m.Key("", 1600))
	// Output:
	// "users[2].3" ""
}
