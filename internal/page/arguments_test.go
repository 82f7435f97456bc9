package page

import (
	"reflect"
	"strings"
	"testing"
)

// Answers about a process have no field for its arguments or environment.
func TestNodesTellNoArguments(t *testing.T) {
	node := reflect.TypeFor[Node]()
	for i := range node.NumField() {
		name := strings.ToLower(node.Field(i).Name)
		for _, word := range []string{"command", "arg", "env"} {
			if strings.Contains(name, word) {
				t.Errorf("a node tells %s", node.Field(i).Name)
			}
		}
	}
}
