package element

import "testing"

// pair is the command that MXNet and BytePS make of a kind of request and a type.
func pair(request, number int32) int32 {
	return (request+number)*(request+number+1)/2 + number
}

func TestOfCommandIsTheReverseOfPairing(t *testing.T) {
	for request := range int32(4) {
		for number := range int32(20) {
			kind, ok := OfCommand(pair(request, number))
			want, known := numbers[number]
			if known = known && request == 0; ok != known || ok && kind != want {
				t.Errorf("request %d of type %d, command %d: %v %v, want %v %v", request, number, pair(request, number), kind, ok, want, known)
			}
		}
	}
	for _, command := range []int32{-1, -1 << 31, 1<<31 - 1, 1 << 30} {
		if kind, ok := OfCommand(command); ok {
			t.Errorf("command %d: %v", command, kind)
		}
	}
}

func TestOfCharsWantsRuleAndCommandToAgree(t *testing.T) {
	for _, c := range []struct {
		name    string
		command int32
		ok      bool
	}{
		{"float32", pair(0, 0), true},
		{"float16", pair(0, 2), true},
		{"bfloat16", pair(0, 12), true},
		{"float32", pair(0, 2), false}, // float16
		{"float16", pair(0, 0), false}, // float32
		{"float32", pair(0, 6), false}, // int64
		{"float32", pair(1, 0), false}, // row-sparse
		{"float32", pair(2, 0), false}, // 2-bit
		{"", pair(0, 0), false},
		{"float8", pair(0, 0), false},
	} {
		if kind, ok := OfChars(c.name, c.command); ok != c.ok || ok && kind.String() != c.name {
			t.Errorf("rule %q, command %d: %v %v, want %v", c.name, c.command, kind, ok, c.ok)
		}
	}
}
