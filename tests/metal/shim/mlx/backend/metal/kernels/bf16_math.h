// The shim's own math and simd functions take bfloat already.
#pragma once
