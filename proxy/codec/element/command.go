package element

// MXNet and BytePS push and pull bytes (CHAR), and say in the command of each message what the
// bytes are: kind of request a (0 plain, 1 row-sparse, 2 compressed) and type of number b, in one
// number by Cantor's pairing, (a+b)(a+b+1)/2 + b. The types are mshadow's.

// numbers are mshadow's types that are kinds.
var numbers = map[int32]Kind{0: Float32, 1: Float64, 2: Float16, 12: BFloat16}

// maxSum bounds a+b: no type has a number near it.
const maxSum = 1 << 10

// OfCommand returns the kind of the values of a message of bytes with that command. It reports
// false where the command says that they are of another kind, row-sparse or compressed, or where
// it is no command of MXNet or BytePS.
func OfCommand(command int32) (Kind, bool) {
	for sum := int32(0); sum <= maxSum; sum++ {
		b := command - sum*(sum+1)/2
		if b < 0 {
			break
		}
		if b <= sum {
			kind, ok := numbers[b]
			return kind, ok && b == sum // a = sum - b is 0: plain
		}
	}
	return 0, false
}

// OfChars returns the kind of the values of a message of bytes with that command, where a rule says
// that bytes are of the named kind. It reports false where there is no such rule, or where the
// command says otherwise: a job has keys of several types.
func OfChars(name string, command int32) (Kind, bool) {
	if name == "" {
		return 0, false
	}
	kind, err := Parse(name)
	said, ok := OfCommand(command)
	return kind, err == nil && ok && said == kind
}
