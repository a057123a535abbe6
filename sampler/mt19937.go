package sampler

import (
	"crypto/subtle"
	"encoding/binary"
	"math/bits"
)

// Constants of mt19937, from Matsumoto and Nishimura, "Mersenne Twister: A 623-Dimensionally
// Equidistributed Uniform Pseudo-Random Number Generator" (1998).
const (
	mtWords  = 624
	mtMiddle = 397
	mtMatrix = 0x9908b0df
	mtUpper  = 1 << 31
	mtDegree = 19937 // bits of the state: the highest of the first word, and all of the others
)

// An mtState is mtWords successive words of mt19937, not yet tempered.
type mtState [mtWords]uint32

// seedState returns the state after init_genrand(seed).
func seedState(seed uint32) *mtState {
	x := &mtState{seed}
	for i := 1; i < len(x); i++ {
		x[i] = 1812433253*(x[i-1]^x[i-1]>>30) + uint32(i)
	}
	return x
}

// generate computes all words of x after the first mtWords.
func generate(x []uint32) {
	for i := range x[mtWords:] {
		y := x[i]&mtUpper | x[i+1]&^mtUpper
		x[i+mtWords] = x[i+mtMiddle] ^ y>>1 ^ -(y&1)&mtMatrix
	}
}

func temper(y uint32) uint32 {
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// statesPerJump is about the distance, in states, beyond which jump is faster than skip.
const statesPerJump = 4096

// skip returns the n-th state after x.
func (x *mtState) skip(n uint64) *mtState {
	var words [2 * mtWords]uint32
	copy(words[mtWords:], x[:])
	for range n {
		copy(words[:], words[mtWords:])
		generate(words[:])
	}
	b := mtState(words[mtWords:])
	return &b
}

// jump returns the n-th state after x, in about the same time for any n, as in Haramoto, Matsumoto,
// Nishimura, Panneton and L'Ecuyer, "Efficient Jump Ahead for F2-Linear Random Number Generators"
// (2008). Words are linear over GF(2) in the state, so its characteristic polynomial annihilates
// their sequence: a word J ahead is the sum of the words i ahead, over the terms t^i of t^J modulo
// that polynomial.
//
// x must not come from seedState, because the lower 31 bits of its first word are outside the
// state.
func (x *mtState) jump(n uint64) *mtState {
	var words [mtDegree - 1 + mtWords]uint32
	copy(words[:], x[:])
	generate(words[:])
	from, _ := binary.Append(nil, binary.LittleEndian, words[:])
	var sum [4 * mtWords]byte
	for i, w := range jumpPolynomial(n) {
		for ; w != 0; w &= w - 1 {
			offset := 4 * (64*i + bits.TrailingZeros64(w))
			subtle.XORBytes(sum[:], sum[:], from[offset:])
		}
	}
	b := new(mtState)
	binary.Decode(sum[:], binary.LittleEndian, b)
	return b
}

// characteristicExponents lists the exponents of mt19937's characteristic polynomial, except the
// highest, mtDegree. By the appendix of the 1998 paper, it is v u^31 + a_0 v u^30 + a_1 v u^29 + …
// + a_30 v + a_31, with v = t^624 + t^397, u = t^623 + t^396, and a_i = bit i of mtMatrix.
var characteristicExponents = func() []int {
	exponents := []int{0}
	for k := range 32 {
		if k < 31 && uint32(mtMatrix)>>(30-k)&1 == 0 {
			continue
		}
		for j := range k + 2 { // v u^k is t^(397+396k) (1 + t^227)^(k+1)
			if j&^(k+1) == 0 { // C(k+1, j) is odd, by Lucas
				exponents = append(exponents, 397+396*k+227*j)
			}
		}
	}
	return exponents[:len(exponents)-1]
}()

// A polynomial over GF(2) has the coefficient of t^i in bit i%64 of word i/64. It has room for a
// product, and a spare word for add.
type polynomial [(2*mtDegree+mtWords)/64 + 2]uint64

// add adds w * t^exponent.
func (p *polynomial) add(w uint64, exponent int) {
	i, shift := uint(exponent)/64, uint(exponent)%64
	p[i] ^= w << shift
	p[i+1] ^= w >> (64 - shift)
}

// jumpPolynomial returns t^(mtWords*n) modulo the characteristic polynomial.
func jumpPolynomial(n uint64) []uint64 {
	const word, bit = mtDegree / 64, mtDegree % 64
	p := polynomial{1}
	for i := bits.Len64(n) - 1; i >= 0; i-- {
		var q polynomial
		shift := mtWords * int(n>>i&1)
		for j, w := range p[:word+1] {
			q.add(squareBits(uint32(w)), 128*j+shift)
			q.add(squareBits(uint32(w>>32)), 128*j+64+shift)
		}
		// The characteristic polynomial has no term in the 622 places below t^mtDegree, so 64 terms
		// can be reduced at a time.
		for j := len(q) - word - 2; j >= 0; j-- {
			if w := q[j+word]>>bit | q[j+word+1]<<(64-bit); w != 0 {
				for _, e := range characteristicExponents {
					q.add(w, 64*j+e)
				}
			}
		}
		q[word] &= 1<<bit - 1
		p = q
	}
	return p[:word+1]
}

// squareBits moves bit i to bit 2i, which squares a polynomial over GF(2).
func squareBits(w uint32) uint64 {
	x := uint64(w)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	x = (x | x<<2) & 0x3333333333333333
	return (x | x<<1) & 0x5555555555555555
}
