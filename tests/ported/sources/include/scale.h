template <typename T> static T scaled(T value)
{
    return value * 2;
}
